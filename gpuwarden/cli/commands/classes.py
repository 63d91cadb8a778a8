"""`gpuwarden class list|show|diff`: what stands behind an attestation hash.

A document is believed only if it hashes to what the controller says it does.
"""

import sys
from typing import Final

from gpuwarden.cli.client import Asker, ask
from gpuwarden.cli.fleet_columns import CLASSES, joined
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.outcome import CliError, ExitCode
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.terminal import Column, facts, shown, table, visible
from gpuwarden.evidence.class_document import (
    ClassDocument,
    Difference,
    Scalar,
    attestation_hash,
    decode_class_document,
    diff,
)
from gpuwarden.evidence.class_document import facts as document_facts
from gpuwarden.evidence.errors import DecodeError
from gpuwarden.wire.v1 import fleet_pb2 as pb


def list_(*, output: Output = Format.TABLE, connection: Connection = HERE) -> None:
    """List the classes that nodes have now and that policy names.

    Parameters
    ----------
    output
        How to print; `name` gives full hashes, or the name of a named class.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda asker: asker.classes())
    if output in STRUCTURED:
        sys.stdout.write(structured(plain(found), output))
    elif output is Format.NAME:
        names = (one.attestation_hash or joined(one.names) for one in found.classes)
        sys.stdout.write("".join(f"{shown(name)}\n" for name in names))
    elif not found.classes:
        sys.stdout.write("No classes.\n")
    else:
        sys.stdout.write(table(visible(CLASSES, wide=output is Format.WIDE), found.classes))


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
    found = ask(connection, lambda asker: asker.attestation_class(reference))
    document = _document(found) if found.document else None
    if output in STRUCTURED:
        sys.stdout.write(structured(plain(found), output))
    elif output is Format.NAME:
        sys.stdout.write(f"{shown(found.attestation_hash or joined(found.names))}\n")
    else:
        sys.stdout.write(_text(found, document))


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

    async def both(asker: Asker) -> tuple[ClassDocument, ClassDocument]:
        return await _resolved(asker, left), await _resolved(asker, right)

    differences = diff(*ask(connection, both))
    sys.stdout.write(_differences(differences, output))
    return ExitCode.FINDING if differences else ExitCode.OK


_DIFFERENCES: Final[tuple[Column[Difference], ...]] = (
    Column("PATH", lambda x: x.path),
    Column("LEFT", lambda x: _scalar(x.left)),
    Column("RIGHT", lambda x: _scalar(x.right)),
)


async def _resolved(asker: Asker, reference: str) -> ClassDocument:
    found = await asker.attestation_class(reference)
    if not found.attestation_hash and len(found.hashes) == 1:
        found = await asker.attestation_class(found.hashes[0])
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


def _differences(differences: list[Difference], output: Format) -> str:
    if output in STRUCTURED:
        return structured([x._asdict() for x in differences], output)
    if output is Format.NAME:
        return "".join(f"{shown(x.path)}\n" for x in differences)
    return table(_DIFFERENCES, differences) if differences else "The classes are the same.\n"


def _scalar(value: Scalar) -> str:
    """As JSON writes it, but text without quotation marks."""
    if isinstance(value, str):
        return value
    return "null" if value is None else str(value).lower()
