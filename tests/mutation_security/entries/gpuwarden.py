"""Security mutations of the packages of `gpuwarden/` that have no file of their own."""

from typing import Final

from tests.mutation_security.security_mutation import Edit, SecurityMutation, one
from tests.mutation_security.shown_by import CLOCKS, HOSTILE, RPC

ENTRIES: Final = (
    one(
        "skew-revokes-nobody",
        "gpuwarden/reasons.py",
        "ReasonCode.CLOCK_SKEW: Effect.TRANSIENT,",
        "ReasonCode.CLOCK_SKEW: Effect.REVOKE,",
        f"{CLOCKS}::test_a_step_of_the_nodes_wall_clock_gains_and_revokes_nothing",
    ),
    SecurityMutation(
        "wall-clock-revokes-nobody",
        (
            Edit(
                "gpuwarden/reasons.py",
                "ReasonCode.SVID_EXPIRED: Effect.TRANSIENT,",
                "ReasonCode.SVID_EXPIRED: Effect.REVOKE,",
            ),
            Edit(
                "controller/fleet/attestation_result.py",
                "EFFECT_OF[refusal.code] if step >= FIRST_STEP_OF_THE_NODE else Effect.TRANSIENT",
                "EFFECT_OF[refusal.code]",
            ),
            Edit(
                "controller/fleet/trust.py",
                "event.effect if event.step >= _FIRST_STEP_OF_THE_NODE else Effect.TRANSIENT",
                "event.effect",
            ),
        ),
        (f"{CLOCKS}::test_a_step_of_the_controllers_wall_clock_revokes_nobody",),
    ),
    one(
        "size-on-the-wire",
        "gpuwarden/wire/transport.py",
        '("grpc.max_receive_message_length", max_received_bytes or max_message_bytes)',
        '("grpc.max_receive_message_length", -1)',
        f"{HOSTILE}::test_fifty_megabytes_end_the_call_and_nothing_else",
        f"{RPC}::test_a_message_above_the_hard_cap_ends_the_call",
    ),
    one(
        "terminal",
        "gpuwarden/cli/text/terminal.py",
        "    if text.isprintable():\n",
        "    if text:\n",
        "tests/unit/gpuwarden/cli/text/test_terminal.py::test_no_control_character_survives",
    ),
    one(
        "lines-of-the-log",
        "gpuwarden/telemetry/logs.py",
        '    text = _CONTROL.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)\n',
        "",
        "tests/unit/gpuwarden/telemetry/test_logs.py::test_untrusted_text_cannot_forge_a_line",
    ),
    one(
        "secrets-in-logs",
        "gpuwarden/telemetry/logs.py",
        "        if _SECRET_NAME.search(name):",
        "        if False:",
        "tests/unit/gpuwarden/telemetry/test_logs.py::test_what_is_called_a_secret_never_comes_out",
    ),
    one(
        "log-lines-are-limited",
        "gpuwarden/telemetry/limited.py",
        "if not (budget.has_one(now) and self._all.has_one(now)):",
        "if False:",
        "tests/unit/gpuwarden/telemetry/test_limited.py"
        "::test_one_key_writes_few_lines_and_then_says_how_many_were_left_out",
        "tests/unit/controller/recorders/test_trust.py"
        "::test_invented_alarms_of_one_node_are_few_lines_and_no_errors",
    ),
)
