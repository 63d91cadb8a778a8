"""`gpuwarden why POD`: in few lines why a pod waits or is wrong, and what repairs it."""

import sys
from typing import Final

from gpuwarden.cli.commands.explain import is_finding, parted, waits
from gpuwarden.cli.connection.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import ExitCode
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.pod_texts import of_first, refused, remedy, would_pass
from gpuwarden.cli.text.terminal import joined, paragraph
from gpuwarden.counted import counted
from gpuwarden.wire.v1 import placement_pb2 as pb

_FAULTY: Final = frozenset({"missing", "mismatch"})
_ITS_GPU: Final = "its GPU "
"""So begins the controller's finding that a GPU of the pod has failed."""
_GONE: Final = ""
"""The phase of a pod that the API server does not have."""
_AGAIN: Final = "Or delete the pod: its owner makes another."
_ENDED: Final = frozenset({"Succeeded", "Failed"})


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
        said = f"{bad.name} is {bad.state}: {joined(bad.findings) or bad.source}"
        return _failed(bad) or said, ""
    if found.phase in {_GONE, *_ENDED}:
        return _over(found), ""
    if not found.managed and not _stage(found, "reserved").gpus:
        return "asks gpuwarden for nothing, so nothing of gpuwarden holds it back", ""
    return _waiting(found) if waits(found) else _bound(found)


def _stage(found: pb.ExplainPodResponse, name: str) -> pb.Stage:
    return next((x for x in found.stages if x.name == name), pb.Stage())


def _failed(one: pb.Stage) -> str:
    """Which GPUs of the pod have failed: that alone, for it comes before what else is said."""
    return "; ".join(x for x in one.findings if x.startswith(_ITS_GPU))


def _first(one: pb.Stage) -> str:
    """What a stage says before all else."""
    return next(iter(one.findings), one.state)


def _over(found: pb.ExplainPodResponse) -> str:
    """That it is gone or has ended, and what is left of it."""
    said = ["is gone" if found.phase == _GONE else f"has ended ({found.phase})"]
    reserved, runs = _stage(found, "reserved"), _stage(found, "nvml")
    if found.phase != _GONE and _stage(found, "bound").state == "over":
        said.append("was bound to no node")
    if reserved.gpus:
        said.append(f"still holds {joined(reserved.gpus)}: {_first(reserved)}")
    elif reserved.state in {"over", "unneeded"}:
        said.append("holds no GPU")
    else:
        said.append(f"whether it holds a GPU is not known: {_first(reserved)}")
    if runs.state == "reached":
        said.append(f"its processes still use {joined(runs.gpus)}")
    return "; ".join(said)


def _bound(found: pb.ExplainPodResponse) -> tuple[str, str]:
    """What is reserved for a pod on a node, or why nothing is, or not yet."""
    reserved, kubelet = _stage(found, "reserved"), _stage(found, "kubelet")
    given = f"kubelet gave it {joined(kubelet.gpus)}" if kubelet.gpus else ""
    if reserved.state == "reached":
        return f"is bound; reserved for it: {joined(reserved.gpus)} ({_first(reserved)})", ""
    said = ["is bound", *filter(None, (given,))]
    if reserved.state == "waiting":
        said += [] if given else [_first(kubelet)]
        said.append(f"not recorded yet ({_first(reserved)})")
    elif reserved.state == "unneeded":
        said.append(_first(reserved))
    else:
        said.append(f"what is reserved for it is not known: {_first(reserved)}")
    against = _reported(found) if found.report_only else ()
    if against:
        said.append(f"would have been refused: {joined(against)}")
    return "; ".join(said), next(iter(against), "")


def _reported(found: pb.ExplainPodResponse) -> tuple[str, ...]:
    """Codes of the last decisions about it that would have been refusals."""
    last = {x.kind: x for x in found.records if x.uid in {"", found.uid}}
    codes = (code for x in last.values() if x.decision == "reported" for code in x.codes)
    return tuple(dict.fromkeys(codes))


def _waiting(found: pb.ExplainPodResponse) -> tuple[str, str]:
    if found.code:
        text = refused(found.code, found.detail, report_only=found.report_only)
        return text, found.code
    if found.passing:
        return f"waits for its scheduler: {would_pass(found)}", ""
    if not found.rejections:
        return "waits: there is no node to look at", ""
    most = found.rejections[0]
    stays = _stays_with(found)
    if stays:
        detail = f": {most.detail}" if most.detail else ""
        return f"waits: stays with its node {stays} ({most.code}{detail})", most.code
    total = sum(x.count for x in found.rejections)
    example = f", for example {of_first(most)}" if most.nodes else ""
    reject = "rejects" if most.count == 1 else "reject"
    some = f"{most.count} of {counted(total, 'node')} {reject} it"
    return f"waits: {some} with {most.code}{example}", most.code


def fix_of(code: str, found: pb.ExplainPodResponse) -> str:
    """What repairs it, with the node's own name in its commands; empty where nothing is known."""
    node = next((x.nodes[0] for x in found.rejections if x.code == code and x.nodes), "")
    repairs = remedy(code, node)
    return f"{repairs} {_AGAIN}".lstrip() if code and _stays_with(found) else repairs


def _stays_with(found: pb.ExplainPodResponse) -> str:
    """The node on which a waiting pod has got GPUs at its creation, where that rejects it."""
    if not (waits(found) and _stage(found, "reserved").gpus and len(found.rejections) == 1):
        return ""
    only = found.rejections[0]
    return only.nodes[0] if only.count == 1 and only.nodes else ""
