"""`gpuwarden why POD`: in few lines why a pod waits or is wrong, and what repairs it."""

import sys
from typing import Final

from gpuwarden.cli.commands.explain import is_finding, parted, waits
from gpuwarden.cli.exit_codes import ExitCode
from gpuwarden.cli.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.output import Format, printed
from gpuwarden.cli.pod_texts import of_first, refused, remedy, would_pass
from gpuwarden.cli.question import ask
from gpuwarden.cli.terminal import joined, paragraph
from gpuwarden.counted import counted
from gpuwarden.wire.v1 import placement_pb2 as pb

_FAULTY: Final = frozenset({"missing", "mismatch"})


def why(
    name: str,
    /,
    *,
    namespace: Namespace = "default",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Explain in few lines why a pod waits, and the fix; exits with 3 where it cannot go on.

    Parameters
    ----------
    name
        The pod, as `NAMESPACE/NAME` or `NAME`.
    namespace
        Namespace of a pod that is given by its name alone.
    output
        How to print; JSON has `pod`, `why`, `fix` and `code`, `name` gives the reason code.
    connection
        How to reach the controller.

    """
    where, what = parted(name, namespace)
    found = ask(connection, lambda client: client.account(where, what))
    cause, code = cause_of(found)
    fix = fix_of(code, found)
    pod = f"{found.namespace}/{found.name}"
    answer = {"pod": pod, "why": cause, "fix": fix, "code": code}
    lines = [paragraph(f"{pod}: {cause}")]
    if fix:
        lines.append(paragraph(f"fix: {fix}"))
    lines.append(f"more: gpuwarden explain pod {pod}\n")
    names = (code,) if code else ()
    sys.stdout.write(printed(answer, output, names=names, text=lambda: "".join(lines)))
    return ExitCode.FINDING if is_finding(found) else ExitCode.OK


def cause_of(found: pb.ExplainPodResponse) -> tuple[str, str]:
    """What stands against the pod in a sentence, and the reason code where there is one."""
    bad = next((x for x in found.stages if x.state in _FAULTY), None)
    if found.wrong and bad is not None:
        return f"{bad.name} is {bad.state}: {joined(bad.findings) or bad.source}", ""
    if not found.managed:
        return "asks gpuwarden for nothing, so nothing of gpuwarden holds it back", ""
    return _waiting(found) if waits(found) else ("is bound, and has what was reserved for it", "")


def _waiting(found: pb.ExplainPodResponse) -> tuple[str, str]:
    if found.code:
        text = refused(found.code, found.detail, report_only=found.report_only)
        return text, found.code
    if found.passing:
        return f"waits for its scheduler: {would_pass(found)}", ""
    if not found.rejections:
        return "waits: there is no node to look at", ""
    most = found.rejections[0]
    total = sum(x.count for x in found.rejections)
    example = f", for example {of_first(most)}" if most.nodes else ""
    reject = "rejects" if most.count == 1 else "reject"
    some = f"{most.count} of {counted(total, 'node')} {reject} it"
    return f"waits: {some} with {most.code}{example}", most.code


def fix_of(code: str, found: pb.ExplainPodResponse) -> str:
    """What repairs it, with the node's own name in its commands; empty where nothing is known."""
    node = next((x.nodes[0] for x in found.rejections if x.code == code and x.nodes), "")
    return remedy(code, node)
