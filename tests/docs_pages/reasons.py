"""Makes docs/reference/reasons.md from the code's own tables; pure, writes no file."""

from typing import Final

from controller.placement.cures import CURES, Cure
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import EFFECT_OF, STEP_OF, ReasonCode, Stage

_HEAD: Final = """\
# Reason codes

Generated from `gpuwarden/reasons.py` and `gpuwarden/reason_texts.py` by `make docs`; do not edit.

A code is a stable string. Events (`gpuwarden: CODE short text`), metric labels, gRPC error details,
audit records and the command line use the same one. Verification takes its steps in order. The
first step that fails gives the one code; within a step, the order below decides.

*Effect* is what a refusal does to a node that was trusted until then. **transient**: its lease runs
out. **revoke**: the node is not eligible until its next accepted evidence. **quarantine**: the node
is not eligible until an operator releases or accepts it. Revoke and quarantine apply from step 6
on, where a refusal belongs to the node's authenticated identity. `gpuwarden explain node NODE`
shows the last refusals of a node.

In commands, NODE, POD, NAMESPACE, FILE, DIR (a folder with an audit log), ID (a SPIFFE ID), HASH
and DIGEST (of evidence, as audit records hold it) are placeholders. If gpuwarden is in another
namespace than `gpuwarden-system`, put yours in its place.
This version does not verify hardware reports (step 17): no code of that step occurs.
"""

_TITLES: Final = {
    Stage.STREAM: "When an agent opens a stream (steps 1 to 10)",
    Stage.MESSAGE: "For each message (steps 11 to 20)",
    Stage.PLACEMENT: "When a node is chosen for a pod",
    Stage.BINDING_WEBHOOK: "When a pod is bound",
    Stage.BYPASS: "When a pod is created: bypass checks",
    Stage.STATE: "States and alarms",
    Stage.API: "At the APIs",
}


def reasons_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *(_section(stage) for stage in Stage), _cures()])


def _section(stage: Stage) -> str:
    codes = [code for code in ReasonCode if EXPLANATIONS[code].stage is stage]
    rows = (_row(code) for code in codes)
    return "\n".join(
        [
            f"## {_TITLES[stage]}",
            "",
            "| code | step | effect | cause | what to do |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


_CURES_HEAD: Final = """\
## What ends the waiting of a pod

For each code that `/filter` or the binding webhook gives (`controller/placement/cures.py`).
kube-scheduler also tries a pod by itself: after each event that may help it, such as the end of any
pod, and every 5 min. The first refusal of a pod is in the audit log; equal ones within an hour are
one record with a count. Its event is written once, and counted.

| code | cured by | gpuwarden has it tried again |
|---|---|---|
"""


def _cures() -> str:
    rows = []
    for cure in Cure:
        codes = [code for code in ReasonCode if CURES.get(code) is cure]
        if cure is Cure.AUTHOR:
            codes = [x for x in codes if not x.startswith("BYPASS_")]
        shown = ", ".join(f"`{x}`" for x in codes) + (", `BYPASS_…`" * (cure is Cure.AUTHOR))
        rows.append(f"| {shown} | {cure.cured_by} | {cure.wakes} |")
    return _CURES_HEAD + "\n".join(rows) + "\n"


def _row(code: ReasonCode) -> str:
    text = EXPLANATIONS[code]
    effect = EFFECT_OF.get(code)
    cells = (f"`{code}`", str(STEP_OF.get(code, "")), effect or "", text.cause, text.remedy)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
