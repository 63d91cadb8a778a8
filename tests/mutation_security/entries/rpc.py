"""Security mutations of `controller/rpc`: who may call what, how often and how long."""

from typing import Final

from tests.mutation_security.security_mutation import Edit, SecurityMutation, one
from tests.mutation_security.shown_by import CALLS, FLEET_RPC, HOSTILE, RPC

ENTRIES: Final = (
    one(
        "asked-while-open",
        "controller/rpc/attestation.py",
        "        return min(self._next_ns, self._challenges.open_until_ns)\n",
        "        return 0\n",
        f"{RPC}::test_while_a_challenge_is_open_those_who_ask_wait_for_the_next_one",
    ),
    one(
        "rpc-unknown-fields",
        "controller/rpc/strict_messages.py",
        "if isinstance(message, Message) and _drop_unknown(message) and method.startswith(_OWN):",
        "if False:",
        "tests/unit/controller/rpc/test_strict_messages.py"
        "::test_unknown_fields_are_refused_at_any_depth",
    ),
    one(
        "rpc-whole-message",
        "controller/rpc/strict_messages.py",
        "        if len(data) > max_bytes:\n",
        "        if False:\n",
        "tests/unit/controller/rpc/test_strict_messages.py"
        "::test_the_whole_message_is_bounded_before_it_is_decoded",
    ),
    one(
        "operator-release-of-gpus",
        "controller/access.py",
        '        f"{_OPERATOR}/ReleaseGpu": _OPERATORS,\n',
        '        f"{_OPERATOR}/ReleaseGpu": _READERS,\n',
        "tests/integration/test_operator_rpc.py::test_nobody_else_acts",
        "tests/unit/controller/test_access.py::test_matrix",
    ),
    one(
        "roles",
        "controller/access.py",
        "if caller in ALLOWED_CALLERS.get(method, frozenset()):",
        "if method in ALLOWED_CALLERS:",
        f"{RPC}::test_the_matrix_over_tls",
    ),
    one(
        "before-the-request",
        "controller/rpc/interceptor.py",
        "        if refusal is not None:\n            await abort_with(context, refusal)\n",
        "        if refusal is not None:\n"
        "            await self._one_request(context)\n"
        "            await abort_with(context, refusal)\n",
        f"{CALLS}::test_an_unknown_caller_is_refused_before_its_request_is_read",
    ),
    SecurityMutation(
        "expired-mid-stream",
        (
            Edit(
                "controller/rpc/attestation.py",
                "min(left_s, self._service.timing.age_s)",
                "max(left_s, self._service.timing.age_s)",
            ),
            Edit(
                "controller/rpc/interceptor.py",
                "    return max(0.0, (caller.not_after - now).total_seconds())",
                "    return None",
            ),
        ),
        (f"{RPC}::test_a_stream_ends_with_its_certificate",),
    ),
    one(
        "expired-readers",
        "controller/rpc/interceptor.py",
        "    return max(0.0, (caller.not_after - now).total_seconds())",
        "    return None",
        f"{RPC}::test_reflection_ends_with_the_callers_certificate",
        f"{FLEET_RPC}::test_a_stream_ends_with_the_callers_certificate",
    ),
    one(
        "nonce-at-random",
        "controller/rpc/challenges.py",
        "draw: Callable[[int], bytes] = secrets.token_bytes,",
        "draw: Callable[[int], bytes] = lambda size: secrets.token_bytes(1) * size,",
        f"{HOSTILE}::test_no_nonce_ever_comes_twice",
    ),
    one(
        "messages-per-peer",
        "controller/rpc/attestation.py",
        "if refusal := self._service.usage.message(self._peer, now_ns):",
        "if refusal := None:",
        f"{RPC}::test_flooding_ends_the_stream",
    ),
    one(
        "calls-per-caller",
        "controller/rpc/interceptor.py",
        "if self._open[caller.name] >= self._calls_per_caller:",
        "if False:",
        f"{CALLS}::test_one_caller_cannot_take_all_calls",
    ),
    one(
        "slow-senders",
        "controller/rpc/attestation.py",
        "int(self._service.timing.hello_s * NS_PER_S)",
        "3600 * NS_PER_S",
        f"{HOSTILE}::test_a_message_that_comes_byte_by_byte_is_not_waited_for",
    ),
    one(
        "slow-readers",
        "controller/rpc/attestation.py",
        "async with asyncio.timeout(self._service.timing.write_s):",
        "async with asyncio.timeout(3600):",
        "tests/unit/controller/rpc/test_attestation.py::test_a_peer_that_does_not_read_is_cut_off",
    ),
    one(
        "slow-requests",
        "controller/rpc/interceptor.py",
        "timeout=self._request_seconds)",
        "timeout=3600)",
        f"{CALLS}::test_a_known_caller_cannot_hold_a_slot_by_saying_nothing",
    ),
    one(
        "no-grant-without-record",
        "controller/rpc/intake.py",
        "await self._audit.grant(",
        "self._audit.note(",
        f"{RPC}::test_nothing_is_granted_while_the_log_is_broken",
        f"{RPC}::test_a_grant_waits_for_its_record_and_a_refusal_meanwhile_wins",
    ),
    one(
        "only-operators-act",
        "controller/access.py",
        "_OPERATORS: Final = frozenset({CallerKind.OPERATOR, CallerKind.LOCAL})",
        "_OPERATORS: Final = _READERS",
        "tests/integration/test_operator_rpc.py::test_nobody_else_acts",
        "tests/unit/controller/test_access.py::test_matrix",
    ),
)
