"""Reads evidence whose inventory was read before, without reading the inventory again. Pure.

Most evidence repeats the inventory of the evidence before it, which is nearly all of its
bytes. Those bytes are compared by their digest with the canonical form of the inventory
that is known, and the rest of the document is read as strictly as ever. The result is what
`strict_json.decode` would give, or None: then that has to be asked.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.model import Evidence, EvidenceWithPods, Inventory
from gpuwarden.evidence.strict_json import ENCODER, FAILED, may_be_long


class _Outline(Evidence, frozen=True):
    """Evidence with its inventory as it came."""

    inventory: msgspec.Raw  # type: ignore[assignment] # in the place of the parent's


class _OutlineWithPods(EvidenceWithPods, frozen=True):
    """The same of the other kind."""

    inventory: msgspec.Raw  # type: ignore[assignment] # in the place of the parent's


_DECODERS: Final[dict[type[Evidence], msgspec.json.Decoder[Evidence]]] = {
    Evidence: msgspec.json.Decoder(_Outline),
    EvidenceWithPods: msgspec.json.Decoder(_OutlineWithPods),
}
_NOTHING: Final = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class KnownInventory:
    """An inventory that was read, and by what its bytes are known again."""

    inventory: Inventory
    sha256: bytes
    """Of its canonical form."""

    @staticmethod
    def of(inventory: Inventory) -> "KnownInventory":
        """The inventory with its digest."""
        return KnownInventory(inventory, sha256(canonical_json(inventory)).digest())


def evidence_showing(
    known: KnownInventory, data: bytes, type_: type[Evidence] = Evidence
) -> Evidence | None:
    """The evidence whose canonical form `data` is, if it shows just that inventory."""
    try:
        outline = _DECODERS[type_].decode(data)
        shown: bytes = outline.inventory  # type: ignore[assignment] # as it came
        same = sha256(shown).digest() == known.sha256
        if not same or ENCODER.encode(outline) != data:
            return None
        rest = ENCODER.encode(msgspec.structs.replace(outline, inventory=_NOTHING))
    except FAILED:
        return None
    if may_be_long(rest):
        return None
    return type_(**(msgspec.structs.asdict(outline) | {"inventory": known.inventory}))
