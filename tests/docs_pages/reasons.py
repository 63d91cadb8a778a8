"""Makes docs/reference/reasons.md from the code's own tables; pure, writes no file."""

from typing import Final

from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import EFFECT_OF, STEP_OF, ReasonCode, Stage

_HEAD: Final = """\
# Reason codes

Generated from `gpuwarden/reasons.py` and `gpuwarden/reason_texts.py` by `make docs`; do not edit.

A code is a stable string. The same one stands in events (`gpuwarden: CODE short text`), metric
labels, gRPC error details, audit records and the CLI. Verification goes through its steps in
order, and the first step that fails gives the one code; within a step the order below decides.

*Effect* is what a refusal does to a node that was trusted until then: **transient** lets its lease
run out, **revoke** ends eligibility at once until the next accepted evidence, **quarantine**
revokes until an operator acts. Revoke and quarantine apply from step 6 on, where a refusal belongs
to the node's authenticated identity. `gpuwarden explain node NODE` shows a node's last refusals.
"""

_TITLES: Final = {
    Stage.STREAM: "When an agent opens a stream (steps 1 to 10)",
    Stage.MESSAGE: "For each message (steps 11 to 20)",
    Stage.PLACEMENT: "When a pod looks for a node",
    Stage.GATE: "At the binding gate",
    Stage.DOOR: "Doors around the gate, shut at admission",
    Stage.STATE: "States and alarms",
    Stage.API: "At the APIs",
}


def reasons_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *(_section(stage) for stage in Stage)])


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


def _row(code: ReasonCode) -> str:
    text = EXPLANATIONS[code]
    effect = EFFECT_OF.get(code)
    cells = (f"`{code}`", str(STEP_OF.get(code, "")), effect or "", text.cause, text.remedy)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
