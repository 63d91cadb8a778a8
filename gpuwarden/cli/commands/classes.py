"""`gpuwarden classes` and `gpuwarden class show|diff`: the documents behind attestation hashes.

A document is accepted only if it has the hash that the controller reports for it.
"""

import sys
from typing import TYPE_CHECKING, Final

from gpuwarden.cli.connection.options import HERE, Connection, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.screen import ago, on_screen
from gpuwarden.cli.text.tables import Column
from gpuwarden.cli.text.terminal import facts, joined, paragraph, short_hash, shown
from gpuwarden.evidence.class_document import (
    ClassDocument,
    Difference,
    Scalar,
    attestation_hash,
    decode_class_document,
    diff,
)
from gpuwarden.evidence.class_document import facts as document_facts
from gpuwarden.evidence.strict_json import DecodeError
from gpuwarden.wire.v1 import fleet_pb2 as pb

if TYPE_CHECKING:
    from gpuwarden.cli.connection.client import Client

CLASSES: Final[tuple[Column[pb.Class], ...]] = (
    Column("CLASS", lambda x: short_hash(x.attestation_hash) or joined(x.names), is_name=True),
    Column("NAMES", lambda x: joined(x.names) if x.attestation_hash else "", is_name=True),
    Column("LEVEL", lambda x: x.level),
    Column("NODES", lambda x: str(len(x.nodes))),
    Column("GPUS", lambda x: str(x.gpu_count)),
    Column("HASHES", lambda x: joined((x.attestation_hash, *x.hashes)).strip(","), wide=True),
    Column("ON", lambda x: joined(x.nodes), wide=True),
)
_SAME: Final = "The classes are the same.\n"
_DIFFERENCES: Final[tuple[Column[Difference], ...]] = (
    Column("PATH", lambda x: x.path),
    Column("LEFT", lambda x: _scalar(x.left)),
    Column("RIGHT", lambda x: _scalar(x.right)),
)


def classes(*, output: Output = Format.TABLE, connection: Connection = HERE) -> None:
    """List the classes that nodes have now and that policy names.

    Parameters
    ----------
    output
        How to print; `name` gives full hashes, or the name of a named class.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.classes())
    text = printed(
        found,
        output,
        names=(one.attestation_hash or joined(one.names) for one in found.classes),
        text=lambda: on_screen(CLASSES, found.classes, output) or "No classes.\n",
    )
    sys.stdout.write(text)


def show(
    reference: str, /, *, output: Output = Format.TABLE, connection: Connection = HERE
) -> None:
    """Show the document behind a class.

    Parameters
    ----------
    reference
        A hash, at least 8 of its hex digits, or a name from policy.
    output
        How to print.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.attestation_class(reference))
    document = _document(found) if found.document else None
    text = printed(
        found,
        output,
        names=(found.attestation_hash or joined(found.names),),
        text=lambda: _text(found, document),
    )
    sys.stdout.write(text)


def diff_(
    left: str,
    right: str,
    /,
    *,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Show where two classes differ; exits with 3 if they do.

    Parameters
    ----------
    left
        A hash, at least 8 of its hex digits, or a name from policy that has one hash.
    right
        The class to compare with.
    output
        How to print; `name` gives the paths only.
    connection
        How to reach the controller.

    """

    async def both(client: "Client") -> tuple[ClassDocument, ClassDocument]:
        return await _resolved(client, left), await _resolved(client, right)

    differences = diff(*ask(connection, both))
    text = printed(
        [x._asdict() for x in differences],
        output,
        names=(x.path for x in differences),
        text=lambda: on_screen(_DIFFERENCES, differences, output) or _SAME,
    )
    sys.stdout.write(text)
    return ExitCode.FINDING if differences else ExitCode.OK


async def _resolved(client: "Client", reference: str) -> ClassDocument:
    found = await client.attestation_class(reference)
    if not found.attestation_hash and len(found.hashes) == 1:
        found = await client.attestation_class(found.hashes[0])
    if found.document:
        return _document(found)
    count = len(found.hashes)
    why = f"it names {count} hashes, give one of them" if count > 1 else "no node has shown it yet"
    raise CliError(ExitCode.ERROR, f"'{shown(reference)}' has no document: {why}")


def _document(found: pb.Class) -> ClassDocument:
    try:
        document = decode_class_document(found.document.encode())
    except DecodeError as error:
        raise CliError(ExitCode.FINDING, f"the controller's class document: {error}") from None
    actual = attestation_hash(document)
    if actual != found.attestation_hash:
        text = f"the document hashes to {actual}, not to {shown(found.attestation_hash)}"
        raise CliError(ExitCode.FINDING, text)
    return document


def _text(found: pb.Class, document: ClassDocument | None) -> str:
    head = facts(
        (
            ("Class", found.attestation_hash),
            ("Names", joined(found.names)),
            ("Level", found.level),
            *(("Hash", one) for one in found.hashes),
            ("Nodes", joined(found.nodes)),
            ("GPUs", str(found.gpu_count)),
        )
    )
    if document is None:
        return head
    return f"{head}\n{facts((path, _scalar(value)) for path, value in document_facts(document))}"


def _scalar(value: Scalar) -> str:
    """As JSON writes it, but text without quotation marks."""
    if isinstance(value, str):
        return value
    return "null" if value is None else str(value).lower()


FACTS: Final[tuple[Column[pb.FactChange], ...]] = (
    Column("FACT", lambda x: x.path),
    Column("BEFORE", lambda x: x.old),
    Column("NOW", lambda x: x.new),
)


def class_change_text(whose: str, change: pb.ClassChange, output: Format) -> str:
    """When a node got another class, and what became different. `whose` begins the line."""
    hashes = f"{short_hash(change.old_hash)} to {short_hash(change.new_hash)}"
    head = f"{whose} class changed {ago(change.at)} ago, at {change.at}: {hashes}"
    return paragraph(head) + on_screen(FACTS, change.facts, output)
