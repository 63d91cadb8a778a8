"""What is taken out of a copy of the sources, and which tests must notice.

One entry for each protection that docs/threat-model.md names, under the name of its check. An
edit must stand exactly once in its file, so that this table follows the code or fails. Where
two layers stop the same attack both are taken out: the test is about the attack.
"""

from dataclasses import dataclass
from typing import Final

RPC: Final = "tests/integration/test_attestation_rpc.py"
HOSTILE: Final = "tests/security/test_hostile_agents.py"
CLOCKS: Final = "tests/security/test_clock_steps.py"
COPIED: Final = "tests/security/test_copied_claims.py"
OUTAGE: Final = "tests/security/test_workload_api_outage.py"
CALLS: Final = "tests/security/test_calls_before_authorization.py"
SERVER_TLS: Final = "tests/integration/test_server_credentials_tls.py"
TUNNEL: Final = "tests/integration/test_tunnel.py"
EXTENDER_TLS: Final = "tests/integration/test_extender_tls.py"
EXTENDER_HTTP: Final = "tests/integration/test_extender_http.py"
DOORS: Final = "tests/unit/controller_admission/test_doors.py"
POD_SIZE: Final = "tests/unit/controller_admission/test_pod_size.py"
WEBHOOKS_HTTP: Final = "tests/integration/test_admission_http.py"
WEBHOOKS: Final = "tests/unit/controller_admission/test_pod_webhooks.py"
API_TLS: Final = "tests/integration/test_http_api_tls.py"
API_CALLERS: Final = "tests/unit/controller_http_api/test_api_callers.py"
API_FINALIZE: Final = "tests/unit/controller_http_api/test_finalizing.py"
API_REVIEWS: Final = "tests/unit/controller_http_api/test_token_reviews.py"
REVIEW_ANSWERS: Final = "tests/unit/controller_kube/test_token_reviewer.py"
FLEET_RPC: Final = "tests/integration/test_fleet_rpc.py"
VERIFIER: Final = "tests/property/test_verifier_properties.py"
DECODER: Final = "tests/property/test_evidence_properties.py"
PINS: Final = "tests/unit/controller_verifier/test_pins_and_claims.py"
ROUNDS: Final = "tests/unit/controller_verifier/test_evidence_rounds.py"
ADMISSION: Final = "tests/unit/controller_verifier/test_stream_admission.py"
SPIRE: Final = "tests/unit/controller_spire/test_spire_judgement.py"
SPIRE_TRUST: Final = "tests/integration/test_spire_confirmation.py"
SPIRE_API: Final = "tests/contracts/test_spire_server_contract.py"
CHALLENGES: Final = "tests/unit/controller_verifier/test_challenge_store.py"
ORDER: Final = "tests/unit/controller_verifier/test_verification_order.py"
TRUST: Final = "tests/unit/controller_fleet/test_node_trust.py"
VERDICTS: Final = "tests/unit/controller_scheduling/test_node_verdicts.py"
GATE: Final = "tests/unit/controller_binding/test_gate.py"
PROMISE: Final = "tests/unit/controller_scheduling/test_promise.py"
LIKE_THE_GATE: Final = "tests/unit/controller_binding/test_filter_like_the_gate.py"
EARLY: Final = "tests/unit/controller_binding/test_early_reservation.py"
GATE_DECISION: Final = "tests/unit/controller_binding/test_binding_decision.py"
SETTLEMENT: Final = "tests/unit/controller_binding/test_settlement.py"
SETTLED: Final = "tests/unit/controller_ledger/test_ledger_settlement.py"
RELEASE: Final = "tests/unit/controller_ledger/test_ledger_release.py"
RUNNING_PODS: Final = "tests/unit/agent/test_running_pods.py"
USE_FAULTS: Final = "tests/unit/controller_binding/test_use_faults.py"
LOST: Final = "tests/unit/controller_binding/test_lost_ledger.py"
SEEN_THROUGH: Final = "tests/unit/controller_binding/test_follower.py"
VERBS: Final = "tests/unit/controller_scheduling/test_extender_verbs.py"
AGENT_CHALLENGE: Final = "tests/unit/agent/test_challenge.py"
AGENT_TLS: Final = "tests/integration/test_agent_tls_session.py"
KEEPER: Final = "tests/unit/identity/test_svid_keeper.py"
CHAIN: Final = "tests/unit/identity/test_svid_chain.py"
COUNTING: Final = "tests/unit/controller_audit/test_rounds.py"
LOG: Final = "tests/unit/controller_audit/test_durable_log.py"
FOLLOWER: Final = "tests/unit/controller/test_denial_follower.py"
DECISIONS: Final = "tests/unit/controller_fleet/test_operator_decisions.py"
AUDIT_CHAIN: Final = "tests/property/test_audit_chain.py"
AUDIT_TREE: Final = "tests/unit/audit/test_tree_check.py"
WITNESS: Final = "tests/unit/audit/test_witness_conclusions.py"
BUNDLE: Final = "tests/security/test_support_bundle_leaks.py"
TOLD: Final = f"{BUNDLE}::test_what_a_controller_tells_holds_nothing_that_others_wrote"
FROM_OUTSIDE: Final = f"{BUNDLE}::test_what_is_told_of_a_process_from_outside_holds_nothing_either"
EXHIBITS: Final = "tests/unit/audit/test_exhibit.py"


@dataclass(frozen=True, slots=True)
class Edit:
    """`before` must stand exactly once in `path`."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Weakening:
    """A protection that is taken out, and the tests (`path::name`) that must fail then."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def _one(name: str, path: str, before: str, after: str, *tests: str) -> Weakening:
    return Weakening(name, (Edit(path, before, after),), tests)


WEAKENINGS: Final = (
    _one(
        "node-objects-say-nothing",
        "controller/scheduling/wire.py",
        "if name in passed]",
        'if name in passed or b"attestation-hash" in bytes(node)]',
        f"{COPIED}::test_a_node_that_carries_the_claims_of_another_is_what_its_evidence_says",
    ),
    _one(
        "no-report",
        "controller/scheduling/judge.py",
        "        if own is None or self.accepted is None:\n"
        "            return ReasonCode.NODE_NO_EVIDENCE",
        "        if own is None or self.accepted is None:\n            return None",
        f"{COPIED}::test_a_node_without_evidence_passes_for_no_guarded_pod",
        f"{VERDICTS}::test_a_name_that_nobody_knows_has_no_evidence",
    ),
    _one(
        "client-certificate",
        "gpuwarden/identity/server_credentials.py",
        "require_client_authentication=True",
        "require_client_authentication=False",
        f"{SERVER_TLS}::test_a_hostile_client_ends_inside_the_handshake",
        f"{RPC}::test_a_foreign_authority_does_not_pass_the_handshake",
    ),
    _one(
        "roots-of-now",
        "controller/verifier/peer.py",
        "        return verify_chain(chain_der, roots, at)\n",
        "        return ChainProof((), (), at, at)\n",
        f"{RPC}::test_a_message_after_the_roots_were_replaced",
    ),
    _one(
        "own-trust-domain",
        "controller/verifier/peer.py",
        "if peer.trust_domain != trust_domain:",
        "if False:",
        f"{RPC}::test_a_foreign_name_from_our_own_authority",
    ),
    _one(
        "roles",
        "controller/rpc/authorization.py",
        "if caller in ALLOWED_CALLERS.get(method, frozenset()):",
        "if method in ALLOWED_CALLERS:",
        f"{RPC}::test_the_matrix_over_tls",
    ),
    _one(
        "agents-only-of-the-path",
        "controller/verifier/peer.py",
        "if name is None or name.role is not Role.AGENT:",
        "if name is None:",
        f"{ORDER}::test_a_defect_is_refused_with_its_code_step_and_effect",
    ),
    _one(
        "before-the-request",
        "controller/rpc/interceptor.py",
        "        if refusal is not None:\n            await abort_with(context, refusal)\n",
        "        if refusal is not None:\n"
        "            await self._one_request(context)\n"
        "            await abort_with(context, refusal)\n",
        f"{CALLS}::test_a_stranger_is_refused_before_its_request_is_read",
    ),
    _one(
        "controller-in-tls",
        "gpuwarden/identity/tunnel.py",
        "if found != self.expected:",
        "if False:",
        f"{TUNNEL}::test_no_byte_reaches_a_server_that_is_not_the_expected_one",
        f"{AGENT_TLS}::test_a_server_of_another_identity_is_left_before_hello",
    ),
    _one(
        "controller-in-challenges",
        "agent/challenge.py",
        "if signer != controller:",
        "if False:",
        f"{AGENT_CHALLENGE}::test_another_workload_of_the_trust_domain_is_not_the_controller",
    ),
    Weakening(
        "one-name",
        (
            Edit("controller/verifier/peer.py", "len(facts.uri_sans) != 1:", "not facts.uri_sans:"),
            Edit(
                "controller/verifier/peer.py",
                "if facts.peer_spiffe_id != uri:",
                "if False:",
            ),
        ),
        (f"{RPC}::test_two_uri_names_are_refused_with_a_reason",),
    ),
    _one(
        "resumed-sessions",
        "controller/verifier/peer.py",
        "if facts.resumed:",
        "if False:",
        f"{HOSTILE}::test_a_resumed_session_may_call_nothing",
    ),
    _one(
        "resumed-is-known",
        "gpuwarden/identity/peer.py",
        'resumed=reused != (b"false",),',
        "resumed=False,",
        f"{HOSTILE}::test_a_resumed_session_may_call_nothing",
        f"{SERVER_TLS}::test_a_resumed_session_is_known_as_one",
    ),
    Weakening(
        "expired-mid-stream",
        (
            Edit(
                "controller/rpc/attest_session.py",
                "min(left_s, self._ports.timing.age_s)",
                "max(left_s, self._ports.timing.age_s)",
            ),
            Edit(
                "controller/rpc/interceptor.py",
                "    return max(0.0, (caller.not_after - now).total_seconds())",
                "    return None",
            ),
        ),
        (f"{RPC}::test_a_stream_ends_with_its_certificate",),
    ),
    _one(
        "expired-readers",
        "controller/rpc/interceptor.py",
        "    return max(0.0, (caller.not_after - now).total_seconds())",
        "    return None",
        f"{RPC}::test_reflection_ends_with_the_callers_certificate",
        f"{FLEET_RPC}::test_a_stream_ends_with_the_callers_certificate",
    ),
    _one(
        "dates-of-each-message",
        "gpuwarden/identity/chain.py",
        "    if at > end:",
        "    if False:",
        f"{ADMISSION}::test_the_certificate_counts_to_its_last_moment",
        f"{CLOCKS}::test_a_step_of_the_controllers_wall_clock_revokes_nobody",
    ),
    _one(
        "nonce-once",
        "controller/verifier/challenge.py",
        "if entry.spare_used if spare else entry.answered:",
        "if False:",
        f"{RPC}::test_replayed_evidence_takes_trust_away",
        f"{HOSTILE}::test_a_malleated_signature_is_the_same_evidence",
    ),
    _one(
        "nonce-in-time",
        "controller/verifier/challenge.py",
        "else now_ns > challenge.expires_ns",
        "else False",
        f"{RPC}::test_an_answer_that_comes_too_late",
        f"{CLOCKS}::test_a_suspended_controller_believes_no_lease_from_before",
    ),
    _one(
        "nonce-at-random",
        "controller/rpc/challenger.py",
        "draw: Callable[[int], bytes] = secrets.token_bytes,",
        "draw: Callable[[int], bytes] = lambda size: secrets.token_bytes(1) * size,",
        f"{HOSTILE}::test_no_nonce_ever_comes_twice",
    ),
    _one(
        "nonce-once-for-the-agent",
        "agent/challenge.py",
        "    if document.nonce in expected.used_nonces or document.spare_nonce in",
        "    if document.nonce == '' and document.spare_nonce in",
        f"{AGENT_CHALLENGE}::test_a_nonce_is_good_once_per_stream",
    ),
    _one(
        "nonce-under-the-signature",
        "controller/verifier/binding.py",
        "if not _same_nonce(header, issued, spare=spare):",
        "if False:",
        f"{RPC}::test_signed_evidence_that_says_the_wrong_thing",
    ),
    _one(
        "challenge-of-this-stream",
        "controller/verifier/challenge.py",
        "if x.challenge.challenge_id == name)",
        "if name)",
        f"{HOSTILE}::test_bad_news_signed_in_advance_is_no_weapon",
        f"{RPC}::test_evidence_captured_on_another_stream",
    ),
    _one(
        "spare-nonce-ends",
        "controller/verifier/challenge.py",
        "expired = entry is not self.entries[-1] if spare else",
        "expired = False if spare else",
        f"{CHALLENGES}::test_the_next_challenge_ends_the_spare_nonce",
    ),
    _one(
        "seq-gap",
        "controller/verifier/binding.py",
        "if header.seq > stream.seq + 1:",
        "if False:",
        f"{HOSTILE}::test_messages_out_of_order_are_refused",
    ),
    _one(
        "seq-replay",
        "controller/verifier/binding.py",
        "if header.seq <= stream.seq:",
        "if False:",
        f"{RPC}::test_signed_evidence_that_says_the_wrong_thing",
    ),
    _one(
        "prev",
        "controller/verifier/binding.py",
        "if not _same(header.prev, stream.prev):",
        "if False:",
        f"{RPC}::test_signed_evidence_that_says_the_wrong_thing",
    ),
    _one(
        "identity-of-evidence",
        "controller/verifier/opening.py",
        "evidence_digest(arrival.message.payload_type, arrival.message.payload)",
        "evidence_digest(arrival.message.payload_type, arrival.message.signature)",
        f"{HOSTILE}::test_a_malleated_signature_is_the_same_evidence",
    ),
    _one(
        "signature",
        "gpuwarden/evidence/envelope.py",
        "    key = verifying_key(certificate)\n    message",
        "    return\n    key = verifying_key(certificate)\n    message",
        f"{VERIFIER}::test_any_flipped_bit_is_refused",
        f"{RPC}::test_signed_with_another_key",
        f"{RPC}::test_a_challenge_relayed_to_another_node_proves_nothing",
    ),
    _one(
        "type-under-the-signature",
        "gpuwarden/evidence/envelope.py",
        'kind = payload_type.encode("utf-8")',
        'kind = b"" if payload_type else b"-"',
        f"{ROUNDS}::test_the_payload_type_is_under_the_signature",
    ),
    _one(
        "leaf-of-the-session",
        "controller/verifier/envelope.py",
        "if issued.leaf_sha256 != stream.leaf_sha256:",
        "if False:",
        f"{ORDER}::test_a_defect_is_refused_with_its_code_step_and_effect",
    ),
    _one(
        "node-of-the-hello",
        "controller/verifier/hello.py",
        "if hello.node_name != node:",
        "if False:",
        f"{RPC}::test_a_hello_that_is_refused",
    ),
    _one(
        "node-of-the-evidence",
        "controller/verifier/binding.py",
        "if header.node_name != stream.node:",
        "if False:",
        f"{RPC}::test_signed_evidence_that_says_the_wrong_thing",
    ),
    _one(
        "audience",
        "controller/verifier/binding.py",
        "if (header.audience, header.trust_domain) != (settings.audience, settings.trust_domain):",
        "if False:",
        f"{RPC}::test_signed_evidence_that_says_the_wrong_thing",
    ),
    _one(
        "duplicate",
        "controller/verifier/hello.py",
        "    if stream.superseded_at_open and superseded(record, stream.hello.instance_id):",
        "    if False:",
        f"{RPC}::test_a_new_process_supersedes_the_old_and_the_old_is_a_duplicate_after",
    ),
    _one(
        "crash-loop",
        "controller/verifier/hello.py",
        "    if stream.superseded_at_open and superseded(record, stream.hello.instance_id):",
        "    if record and record.instance not in (None, stream.hello.instance_id):",
        f"{HOSTILE}::test_a_crash_loop_only_moves_forward",
    ),
    _one(
        "pins",
        "controller/verifier/inventory.py",
        "return tuple(changes(question.evidence.inventory, question.pins))",
        "return ()",
        f"{RPC}::test_a_changed_gpu_is_quarantined_and_stays_so_for_new_streams",
        f"{PINS}::test_a_new_uuid_is_another_machine",
    ),
    _one(
        "quarantine-stays",
        "controller/verifier/standing.py",
        "if record is None or record.denial is None:",
        "if True:",
        f"{RPC}::test_a_changed_gpu_is_quarantined_and_stays_so_for_new_streams",
    ),
    _one(
        "form-of-use",
        "controller/verifier/inventory.py",
        "    lines = [*use_findings(evidence)]",
        "    lines = [*(use_findings(evidence) if not has_known_inventory else ())]",
        "tests/unit/controller_verifier/test_evidence_of_use.py"
        "::test_malformed_use_is_refused_in_any_round",
    ),
    _one(
        "denials-follow-hardware",
        "controller/verifier/inventory.py",
        "elif gpu.uuid not in pins and (node := question.enrollment.denied_by(gpu.uuid)):",
        "elif False and (node := ''):",
        f"{PINS}::test_a_denial_follows_the_hardware_to_another_node",
    ),
    _one(
        "node-uid",
        "controller/verifier/inventory.py",
        "record.node_uid in {None, question.node.uid} or _reattested(question):",
        "question:",
        f"{PINS}::test_at_l0_the_operator_decides",
    ),
    _one(
        "claims",
        "controller/verifier/judging.py",
        "contested = contested_claims(question)",
        "contested = ()",
        f"{HOSTILE}::test_claiming_the_whole_fleet_harms_nobody_else",
        f"{RPC}::test_claiming_a_gpu_of_another_node_leaves_its_owner_unharmed",
    ),
    _one(
        "owners-unharmed",
        "controller/fleet/registry.py",
        "            *self._apply(refused.node, event),\n",
        "            *self._apply(refused.node, event),\n"
        "            *(c for x in refused.contested for c in self._apply(x.owner, Quarantine(\n"
        "                refused.code, refused.detail, now_ns, wall_ns))),\n",
        f"{HOSTILE}::test_claiming_the_whole_fleet_harms_nobody_else",
    ),
    _one(
        "enrollment-required",
        "controller/verifier/inventory.py",
        "if not (question.enrollment_required or lists):",
        "if True:",
        f"{PINS}::test_a_pin_from_first_use_is_not_enough",
    ),
    _one(
        "node-clock-skew",
        "controller/verifier/binding.py",
        "if abs(skew) > settings.skew_refuse_ms:",
        "if False:",
        f"{CLOCKS}::test_a_step_of_the_nodes_wall_clock_gains_and_revokes_nothing",
    ),
    _one(
        "node-clock-back",
        "controller/verifier/binding.py",
        "if stream.boottime_ms is not None and times.boottime_ms < stream.boottime_ms:",
        "if False:",
        f"{CLOCKS}::test_a_node_whose_boot_time_goes_back_is_another_machine",
    ),
    _one(
        "skew-revokes-nobody",
        "gpuwarden/reasons.py",
        "ReasonCode.CLOCK_SKEW: Effect.TRANSIENT,",
        "ReasonCode.CLOCK_SKEW: Effect.REVOKE,",
        f"{CLOCKS}::test_a_step_of_the_nodes_wall_clock_gains_and_revokes_nothing",
    ),
    Weakening(
        "wall-clock-revokes-nobody",
        (
            Edit(
                "gpuwarden/reasons.py",
                "ReasonCode.SVID_EXPIRED: Effect.TRANSIENT,",
                "ReasonCode.SVID_EXPIRED: Effect.REVOKE,",
            ),
            Edit(
                "controller/verifier/result.py",
                "EFFECT_OF[refusal.code] if step >= FIRST_STEP_OF_THE_NODE else Effect.TRANSIENT",
                "EFFECT_OF[refusal.code]",
            ),
            Edit(
                "controller/fleet/node_trust.py",
                "event.effect if event.step >= _FIRST_STEP_OF_THE_NODE else Effect.TRANSIENT",
                "event.effect",
            ),
        ),
        (f"{CLOCKS}::test_a_step_of_the_controllers_wall_clock_revokes_nobody",),
    ),
    _one(
        "signature-over-every-byte",
        "gpuwarden/evidence/envelope.py",
        "(len(kind), kind, len(payload), payload)",
        "(len(kind), kind, len(payload), payload[:-1])",
        "tests/fuzz/test_fuzz_targets.py::test_a_short_deterministic_run_finds_nothing",
    ),
    _one(
        "no-crash-by-bytes",
        "gpuwarden/evidence/strict_json.py",
        "    except UnicodeDecodeError as error:",
        "    except ZeroDivisionError as error:",
        "tests/fuzz/test_fuzz_targets.py::test_a_short_deterministic_run_finds_nothing",
        "tests/fuzz/test_fuzz_targets.py::test_mutations_find_nothing",
    ),
    _one(
        "lease",
        "controller/fleet/view.py",
        "if now_ns >= self.acceptance.fresh_until_ns:",
        "if False:",
        f"{CLOCKS}::test_a_suspended_controller_believes_no_lease_from_before",
    ),
    _one(
        "lease-at-each-decision",
        "controller/scheduling/judge.py",
        "if self._scene.now.boottime_ns >= acceptance.fresh_until_ns:",
        "if False:",
        f"{VERDICTS}::test_freshness_is_asked_at_each_decision",
    ),
    _one(
        "clock-suspect",
        "controller/clock_guard.py",
        "return abs(self.offset_ns(boottime_ns, wall_ns)) > self.tolerance_ns + drift_ns",
        "return drift_ns < 0",
        "tests/unit/controller/test_process_parts.py::test_a_step_is_suspect_and_drift_is_not",
    ),
    _one(
        "size-of-messages",
        "controller/verifier/envelope.py",
        "if len(message.payload) > allowed:",
        "if False:",
        f"{RPC}::test_the_envelope_is_wrong",
    ),
    _one(
        "size-on-the-wire",
        "gpuwarden/wire/transport.py",
        '("grpc.max_receive_message_length", max_received_bytes or max_message_bytes)',
        '("grpc.max_receive_message_length", -1)',
        f"{HOSTILE}::test_fifty_megabytes_end_the_call_and_nothing_else",
        f"{RPC}::test_a_message_above_the_hard_cap_ends_the_call",
    ),
    _one(
        "length-of-chains",
        "gpuwarden/identity/chain.py",
        "if len(chain_der) > 1 + MAX_INTERMEDIATES:",
        "if False:",
        f"{HOSTILE}::test_an_overlong_chain_is_refused_before_it_is_verified",
        f"{CHAIN}::test_a_fifth_intermediate_is_refused_before_any_signature_is_computed",
    ),
    _one(
        "keys-of-chains",
        "gpuwarden/identity/chain.py",
        "if key.key_size not in _RSA_BITS:",
        "if False:",
        f"{CHAIN}::test_other_keys_are_refused",
    ),
    _one(
        "repeated-keys",
        "gpuwarden/evidence/strict_json.py",
        "if len(result) != len(pairs):",
        "if False:",
        f"{DECODER}::test_every_duplicate_key_is_refused",
    ),
    _one(
        "nesting",
        "gpuwarden/evidence/strict_json.py",
        "    _refuse_depth(data)\n",
        "    len(data)\n",
        "tests/unit/evidence/test_strict_json.py::test_deep_nesting_does_not_reach_the_parser",
    ),
    _one(
        "streams-per-peer",
        "controller/verifier/peer.py",
        "if facts.peer_streams >= bounds.streams_per_peer:",
        "if False:",
        f"{RPC}::test_more_streams_of_one_peer_than_allowed",
    ),
    _one(
        "openings-per-peer",
        "controller/verifier/peer.py",
        "if facts.rate_exceeded:",
        "if False:",
        f"{RPC}::test_opening_streams_too_often",
    ),
    _one(
        "messages-per-peer",
        "controller/rpc/attest_session.py",
        "if refusal := self._ports.usage.message(self._peer, now_ns):",
        "if refusal := None:",
        f"{RPC}::test_flooding_ends_the_stream",
    ),
    _one(
        "calls-per-caller",
        "controller/rpc/interceptor.py",
        "if self._open[caller.name] >= self._calls_per_caller:",
        "if False:",
        f"{CALLS}::test_one_caller_cannot_take_all_calls",
    ),
    _one(
        "slow-senders",
        "controller/rpc/attest_session.py",
        "int(self._ports.timing.hello_s * _NS)",
        "3600 * _NS",
        f"{HOSTILE}::test_a_message_that_comes_byte_by_byte_is_not_waited_for",
    ),
    _one(
        "slow-readers",
        "controller/rpc/attest_session.py",
        "async with asyncio.timeout(self._ports.timing.write_s):",
        "async with asyncio.timeout(3600):",
        "tests/unit/rpc/test_attest_session.py::test_a_peer_that_does_not_read_is_cut_off",
    ),
    _one(
        "slow-requests",
        "controller/rpc/interceptor.py",
        "timeout=self._request_seconds)",
        "timeout=3600)",
        f"{CALLS}::test_a_known_caller_cannot_hold_a_slot_by_saying_nothing",
    ),
    _one(
        "log-of-one-node",
        "controller/audit/rounds.py",
        "        self._count(record, wall_ns, 1 if known else 0)\n        return known",
        "        self._count(record, wall_ns, 1 if known else 0)\n        return False",
        f"{COUNTING}::test_first_refusal_is_logged_and_repeats_are_counted",
        f"{COUNTING}::test_what_a_peer_can_bring_about_again_and_again_is_counted",
    ),
    _one(
        "warnings-of-one-node",
        "controller/verifier/judging.py",
        "    return found if more <= 0 else",
        "    return found if more else",
        f"{ROUNDS}::test_warnings_of_one_node_are_bounded",
    ),
    _one(
        "extender-mtls",
        "controller/scheduling/serving_tls.py",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        f"{EXTENDER_TLS}::test_nobody_else_is",
        f"{WEBHOOKS_HTTP}::test_only_certificates_of_the_ca_may_call",
    ),
    *(
        _one(
            f"door-{door}",
            "controller/admission/doors/every.py",
            f"    {door},\n",
            "",
            f"{DOORS}::test_an_open_door_is_named",
        )
        for door in (
            "environment.environment",
            "annotations.runtime_devices",
            "volumes.host_paths",
            "volumes.device_lists",
            "privileges.privileged",
            "privileges.host_processes",
            "placement.foreign_scheduler",
            "placement.node_name",
            "placement.runtime_class",
            "resources.claims",
            "resources.unmanaged_gpus",
        )
    ),
    _one(
        "promise-needs-protection",
        "controller/scheduling/promise.py",
        "    if not scene.protected:",
        "    if False:",
        f"{PROMISE}::test_an_unprotected_node_promises_itself_alone",
    ),
    _one(
        "promise-needs-the-taint",
        "controller/scheduling/promise.py",
        "return None if node is not None and node.managed else Limit.NO_TAINT",
        "return None",
        f"{PROMISE}::test_an_unprotected_node_promises_itself_alone",
    ),
    _one(
        "promise-needs-a-runtime",
        "controller/scheduling/promise.py",
        "if scene.policy.policy.honours_variable(name):",
        "if True:",
        f"{PROMISE}::test_a_protected_node_promises_what_its_mode_can_give",
    ),
    _one(
        "taint-that-kubelet-heeds",
        "controller/kube/objects.py",
        'return taint.key == MANAGED_TAINT and taint.effect == "NoExecute"',
        "return taint.key == MANAGED_TAINT",
        "tests/unit/controller_kube/test_objects.py::test_what_is_kept_of_a_node",
    ),
    _one(
        "map-names-one-node",
        "controller/kube/cluster_nodes.py",
        "if len(holders) == 1:",
        "if holders:",
        "tests/unit/controller_kube/test_map_names.py"
        "::test_of_two_nodes_with_one_name_neither_is_meant",
    ),
    _one(
        "map-names-before-labels",
        "controller/scheduling/scene.py",
        "if name in self.nodes.nodes:",
        "if False:",
        "tests/unit/controller_scheduling/test_filter_and_scores.py"
        "::test_a_map_names_a_node_by_its_name_or_its_label",
    ),
    _one(
        "wishes-only-where-a-gate-is",
        "controller/admission/doors/placement.py",
        "if case.needs.guarded and case.rules.only_enforced and not case.enforced:",
        "if False:",
        "tests/unit/controller_admission/test_hint.py"
        "::test_outside_enforced_namespaces_a_wish_is_refused",
    ),
    _one(
        "hints-go",
        "controller/kube/hint_plan.py",
        "LabelChange(name, frozenset(keys - node.hints), node.hints - keys)",
        "LabelChange(name, frozenset(keys - node.hints), frozenset())",
        "tests/unit/controller_kube/test_hint_plan.py"
        "::test_what_fits_no_longer_is_taken_away_first",
    ),
    _one(
        "gate-forged-keys",
        "controller/binding/forgery.py",
        "if keys.is_ours(key) or key in keys.ordinals or is_device:",
        "if is_device:",
        f"{GATE_DECISION}::test_keys_of_ours_in_a_binding_are_refused",
    ),
    _one(
        "gate-doors",
        "controller/binding/decision.py",
        "    if judged.refusals:\n",
        "    if False:\n",
        f"{GATE_DECISION}::test_doors_of_the_stored_pod",
        f"{GATE_DECISION}::test_a_plain_pod_whose_namespace_was_enforced_later",
    ),
    _one(
        "gate-late-ephemeral-containers",
        "controller/admission/judgement.py",
        "    yield from islice(ephemeral(case, _NONE_KNOWN), MOST_OF_A_DOOR)\n",
        "",
        f"{GATE_DECISION}::test_an_ephemeral_container_from_before_its_namespace_was_enforced",
    ),
    _one(
        "gate-plain-pods",
        "controller/binding/gate.py",
        "return Verdict(patch=same_pod_patch(stored))",
        "return _UNTOUCHED",
        f"{GATE}::test_a_binding_without_a_uid_holds_for_the_pod_that_was_judged_alone",
    ),
    _one(
        "host-paths-as-written",
        "controller/admission/doors/volumes.py",
        "if host is not None and host.path not in case.rules.host_paths:",
        "if host is not None and not host.path.startswith(tuple(case.rules.host_paths) or '//'):",
        f"{DOORS}::test_a_host_path_is_listed_as_it_is_written_or_refused",
    ),
    _one(
        "split-gpus",
        "controller/scheduling/device_choice.py",
        "    return device.uuid in busy or device.gpu.uuid in busy\n",
        "    return device.uuid in busy\n",
        f"{GATE_DECISION}::test_a_gpu_that_was_split_while_a_pod_has_it_is_that_pod_s",
    ),
    _one(
        "parts-that-are-not-shown",
        "controller/scheduling/judge.py",
        "if not any(x not in shown and (x in ask.busy or x in ask.shared) for x in held):\n",
        "if True:\n",
        f"{GATE_DECISION}::test_no_gpu_is_given_whole_while_a_pod_has_a_part_that_is_not_shown",
        f"{LIKE_THE_GATE}::test_both_say_the_same",
    ),
    _one(
        "pods-that-are-there-again",
        "controller/binding/follower.py",
        "return PodGone() if sight is None and pod.uid in self._gone else sight",
        "return PodGone() if pod.uid in self._gone else sight",
        f"{SEEN_THROUGH}::test_a_pod_that_is_there_again_keeps_its_gpu",
    ),
    _one(
        "large-events",
        "controller/kube/transport.py",
        "partial(self._content.readline, max_line_length=MAX_LINE_BYTES)",
        "self._content.readline",
        "tests/integration/test_kube_list_watch.py"
        "::test_the_largest_object_that_can_be_does_not_end_a_watch",
    ),
    _one(
        "large-pages",
        "controller/kube/api.py",
        "                if most == 1:\n",
        "                if most >= 1:\n",
        "tests/integration/test_kube_list_watch.py"
        "::test_pages_that_are_too_large_are_asked_for_in_parts",
    ),
    _one(
        "kubelet-gives-after-claims",
        "controller/scheduling/judge.py",
        " or self._could_give_again(node.mode, acceptance):",
        ":",
        f"{GATE_DECISION}::test_kubelet_gives_nothing_while_claims_from_another_mode_are_there",
        f"{LIKE_THE_GATE}::test_both_say_the_same",
    ),
    _one(
        "claims-after-kubelet-gave",
        "controller/ledger/footing.py",
        "    if any(card_of(x.device) == gpu for x in report.given or ()):\n",
        "    if False:\n",
        "tests/unit/controller_ledger/test_ledger_footing.py"
        "::test_a_gpu_that_kubelet_has_given_away_is_not_granted",
    ),
    _one(
        "room-for-ours",
        "controller/admission/judgement.py",
        "found = (unreservable(needs), overfull(pod))",
        "found = (unreservable(needs),)",
        f"{DOORS}::test_a_guarded_pod_leaves_room_for_what_we_write",
    ),
    _one(
        "gate-footing",
        "controller/binding/decision.py",
        "return over or view.grant_refusal(case.node, alone)",
        "return over",
        f"{GATE_DECISION}::test_what_blocks_a_grant_is_asked_about_the_very_gpus",
    ),
    _one(
        "gate-preconditions",
        "controller/binding/results.py",
        'Operation(Verb.ADD, pointer("metadata", "resourceVersion"), stored.version),',
        "",
        "tests/unit/controller_binding/test_binding_request.py"
        "::test_the_patch_fits_whatever_is_there",
        f"{GATE}::test_a_retry_finds_its_own_claim_and_looks_anew",
    ),
    _one(
        "gate-waits-for-its-record",
        "controller/binding/granting.py",
        "await ports.audit.grant(reservation_record(reserved))",
        "reservation_record(reserved)",
        f"{GATE}::test_no_reservation_without_its_record",
        f"{EARLY}::test_no_reservation_without_its_record",
    ),
    _one(
        "gate-takes-late-claims-back",
        "controller/binding/granting.py",
        'await self._revoke(claim, "its answer came too late")',
        "return",
        f"{GATE}::test_an_answer_that_comes_too_late_takes_its_claim_back",
    ),
    _one(
        "gate-stands-on-firm-ground",
        "controller/binding/granting.py",
        "refusal = ports.grant_refusal(claim.node, ())",
        "refusal = None",
        f"{GATE}::test_no_answer_stands_on_a_ledger_that_went_backwards_meanwhile",
    ),
    _one(
        "gate-adopts-what-is-authentic",
        "controller/binding/footing_keeper.py",
        "return ids.is_authentic(live.reservation, subject)",
        "return True",
        f"{SEEN_THROUGH}::test_a_pod_that_only_says_so_is_not_adopted",
    ),
    _one(
        "gate-new-kubelet",
        "controller/binding/use_reports.py",
        "return frozenset() if asked_ns - since_ns >= SETTLES_NS else None",
        "return frozenset()",
        "tests/unit/controller_binding/test_use_reports.py"
        "::test_a_kubelet_that_names_nothing_may_have_just_started",
    ),
    _one(
        "gate-dry-run",
        "controller/binding/gate.py",
        "if not isinstance(decision, Reserve) or asked.dry_run or view.report:",
        "if not isinstance(decision, Reserve) or view.report:",
        f"{GATE}::test_a_dry_run_claims_nothing_and_leaves_nothing_behind",
    ),
    _one(
        "early-keys-are-ours",
        "controller/admission/early.py",
        "    return ids.is_authentic(found.reservation, subject)",
        "    return True",
        f"{EARLY}::test_what_is_changed_behind_our_back_is_refused",
    ),
    _one(
        "early-is-one-pod-s",
        "controller/ledger/claim.py",
        "    if mine.pod.uid not in {None, pod.uid} or pod.uid is None:",
        "    if pod.uid is None:",
        f"{EARLY}::test_of_two_pods_with_one_reservation_one_is_created",
        f"{EARLY}::test_a_copy_of_another_pods_keys_is_refused",
    ),
    _one(
        "early-one-per-owner",
        "controller/binding/early.py",
        "            if not await self._is_there(holder.pod):",
        "            if False:",
        f"{EARLY}::test_the_owner_of_a_pod_over_its_quota_gets_no_second_gpu",
    ),
    _one(
        "early-doors-first",
        "controller/admission/judgement.py",
        "        if against:\n            return Judged(concerned=True, refusals=against)",
        "        if False:\n            return Judged(concerned=True, refusals=against)",
        f"{EARLY}::test_a_pod_that_we_refuse_afterwards_holds_nothing",
    ),
    _one(
        "early-may-still-come",
        "controller/binding/followup.py",
        "{} if part.origin is Origin.ADMISSION else looks",
        "looks",
        f"{EARLY}::test_what_was_reserved_is_kept_while_the_pod_may_come_and_then_let_go",
    ),
    _one(
        "early-on-its-node-alone",
        "controller/binding/decision.py",
        "    if early is not None and granted is not None and granted.node != request.node:",
        "    if False:",
        f"{EARLY}::test_the_gate_refuses_every_other_node",
    ),
    _one(
        "early-node-name",
        "controller/admission/doors/placement.py",
        "and name and (granted is None or granted.node != name):",
        "and name and granted is None:",
        f"{EARLY}::test_another_node_name_than_the_reserved_one_is_refused",
    ),
    _one(
        "early-uninjected",
        "controller/admission/pods.py",
        '            return Refusal(ReasonCode.DOOR_UNINJECTED, "no GPU was reserved for it")',
        "            return None",
        f"{EARLY}::test_a_pod_that_the_mutating_webhook_missed_is_refused",
    ),
    _one(
        "early-dry-run",
        "controller/binding/early.py",
        "            if isinstance(found, Refusal) or ask.dry_run:",
        "            if isinstance(found, Refusal):",
        f"{EARLY}::test_a_dry_run_is_answered_alike_and_leaves_nothing",
    ),
    _one(
        "filter-knows-what-is-held",
        "controller/scheduling/verbs.py",
        "return self._around.scenes.now(use)",
        "return self._around.scenes.now()",
        f"{VERBS}::test_what_the_ledger_holds_is_busy_but_for_its_own_pod",
    ),
    _one(
        "door-env-from",
        "controller/admission/doors/environment.py",
        "if container.env_from and is_last and any(",
        "if False and any(",
        f"{DOORS}::test_an_open_door_is_named",
    ),
    _one(
        "doors-for-guarded-pods",
        "controller/admission/judgement.py",
        "    concerned = needs.guarded or enforced\n",
        "    concerned = enforced\n",
        f"{DOORS}::test_outside_enforced_namespaces_only_guarded_pods_are_asked",
    ),
    _one(
        "door-ephemeral",
        "controller/admission/doors/ephemeral.py",
        "        if container.name in known:",
        "        if True:",
        f"{DOORS}::test_an_ephemeral_container_opens_no_door",
    ),
    _one(
        "door-results",
        "controller/admission/doors/annotations.py",
        "RESULT_KEYS & {*annotations, *pod.labels}",
        "RESULT_KEYS & {*annotations}",
        "tests/unit/controller_admission/test_mutation.py"
        "::test_keys_that_only_we_write_are_refused_wherever_they_stand",
    ),
    _one(
        "pod-size",
        "controller/admission/size.py",
        "+ sum(map(_parts_of, containers))",
        "+ 0",
        f"{POD_SIZE}::test_everything_that_is_judged_counts",
    ),
    _one(
        "refusals-of-a-door",
        "controller/admission/judgement.py",
        "        yield from islice(door(case), MOST_OF_A_DOOR)",
        "        yield from door(case)",
        f"{POD_SIZE}::test_a_thousand_open_doors_are_told_a_few_times_each",
    ),
    _one(
        "uninjected",
        "controller/admission/judgement.py",
        "            refusals += _uninjected((*missing, *late))",
        "            pass",
        f"{DOORS}::test_a_pod_that_the_mutating_webhook_has_not_seen_is_refused",
    ),
    _one(
        "void",
        "controller/admission/supply.py",
        "return Supply.NONE if enforced else Supply.UNTOUCHED",
        "return Supply.UNTOUCHED",
        "tests/property/test_admission_properties.py"
        "::test_in_an_enforced_namespace_no_container_is_left_to_its_image",
    ),
    _one(
        "ledger-touch",
        "controller/ledger/attempt.py",
        "    if watch.touched is None:\n        return Touch()\n",
        "",
        "tests/unit/controller_ledger/test_ledger_attempt.py::test_then_the_pod_is_touched",
    ),
    _one(
        "ledger-lost-answer",
        "controller/ledger/attempt.py",
        'Move(HolderState.RELEASING, "its pod is bound under another reservation")',
        'Move(HolderState.REVOKED, "its pod is bound under another reservation")',
        "tests/unit/controller_binding/test_two_answers.py"
        "::test_what_a_pod_was_started_with_is_kept_though_its_id_is_for_another",
    ),
    _one(
        "ledger-reports-after-the-end",
        "controller/ledger/release.py",
        "    if report.asked_ns <= max(watch.since_ns, watch.last_asked_ns):",
        "    if report.asked_ns <= watch.last_asked_ns:",
        "tests/unit/controller_ledger/test_ledger_release.py"
        "::test_what_was_asked_before_the_end_does_not_count",
    ),
    _one(
        "ledger-two-reports",
        "controller/ledger/release.py",
        "_ENOUGH: Final = 2",
        "_ENOUGH: Final = 1",
        "tests/unit/controller_ledger/test_ledger_release.py::test_one_does_not",
    ),
    _one(
        "ledger-share-group",
        "controller/ledger/claim.py",
        "    if claim.share is None or record.share != claim.share:",
        "    if claim.share is not None and record.share != claim.share:",
        "tests/unit/controller_ledger/test_ledger_claim.py::test_nobody_else_does",
        "tests/property/test_ledger_machine.py::test_what_is_held_is_what_was_granted",
    ),
    _one(
        "ledger-rollback",
        "controller/ledger/claim.py",
        "    if record is None or mine != claim.part():",
        "    if record is None or mine is None:",
        "tests/unit/controller_ledger/test_ledger_claim.py::test_nothing_else_is",
        "tests/unit/controller_ledger/test_claimant.py"
        "::test_a_rollback_leaves_what_another_relies_on",
    ),
    _one(
        "reservation-id-pod",
        "controller/ledger/reservation_id.py",
        '            "pod": subject.pod_uid if nonce is None else None,',
        '            "pod": None,',
        "tests/unit/controller_ledger/test_reservation_id.py"
        "::test_a_copy_on_another_subject_is_known_as_one",
    ),
    _one(
        "reservation-removed-by-force",
        "controller/kube/reservation_store.py",
        "            if new.key in self._objects.missing:\n"
        "                await self._mend(new.key)\n"
        "                return False\n",
        "",
        "tests/integration/test_kube_ledger_store.py::test_nobody_gets_it_meanwhile",
    ),
    _one(
        "namespace-seen-by-the-api-server",
        "controller/admission/pods.py",
        "marked or ports.is_enforced(request.namespace)",
        "ports.is_enforced(request.namespace)",
        f"{WEBHOOKS}::test_what_the_api_server_says_about_a_namespace_is_enough",
    ),
    _one(
        "webhook-failure",
        "controller/admission/webhook.py",
        'return Verdict((refusal,), result="failed")',
        'return Verdict(result="failed")',
        f"{WEBHOOKS_HTTP}"
        "::test_what_is_not_decided_in_time_is_refused_before_the_api_server_gives_up",
        f"{WEBHOOKS_HTTP}::test_a_failure_is_a_refusal_that_tells_nothing",
    ),
    _one(
        "webhook-fail-open",
        "deploy/kustomize/components/admission/webhooks.yaml",
        "        path: /validate/pods/enforced\n"
        "        port: 443\n"
        "    admissionReviewVersions: [v1]\n"
        "    sideEffects: NoneOnDryRun\n"
        "    failurePolicy: Fail\n",
        "        path: /validate/pods/enforced\n"
        "        port: 443\n"
        "    admissionReviewVersions: [v1]\n"
        "    sideEffects: NoneOnDryRun\n"
        "    failurePolicy: Ignore\n",
        "tests/deploy/test_admission_files.py::test_a_webhook_that_does_not_answer_lets_nothing_in",
    ),
    _one(
        "extender-address",
        "controller/scheduling/extender.py",
        "if address.is_loopback or (tls is not None and tls.client_ca is not None):",
        "if True:",
        f"{EXTENDER_HTTP}::test_an_open_address_without_a_client_ca_is_refused",
        f"{EXTENDER_TLS}::test_an_open_address_needs_the_client_ca_and_not_only_a_certificate",
    ),
    _one(
        "extender-tickets",
        "controller/scheduling/serving_tls.py",
        "context.num_tickets = 0",
        "context.num_tickets = 2",
        f"{EXTENDER_TLS}::test_a_session_cannot_be_resumed",
    ),
    _one(
        "wishes-fail-closed",
        "controller/scheduling/requirements.py",
        "return RequirementsInvalid(tuple(findings)) if findings else wishes",
        "return wishes",
        f"{VERBS}::test_invalid_wishes_fail_every_node_and_say_why",
    ),
    _one(
        "not-ready",
        "controller/scheduling/verbs.py",
        "        if reason is not None:\n            text = ",
        "        if reason is None and self is None:\n            text = ",
        f"{VERBS}::test_guarded_pods_get_an_error_until_ready",
    ),
    _one(
        "stale-store",
        "controller/verifier/standing.py",
        "if now_ns >= known.enrollment.fresh_until_ns:",
        "if False:",
        f"{ORDER}::test_a_defect_is_refused_with_its_code_step_and_effect",
    ),
    _one(
        "spire-revokes",
        "controller/spire/revocation.py",
        "            if view.acceptance is not None and view.blocked is None:",
        "            if view.acceptance is None:",
        f"{SPIRE_TRUST}::test_the_next_look_ends_trust_and_streams_while_the_svid_is_valid",
    ),
    _one(
        "spire-node",
        "controller/spire/judgement.py",
        "if text := mismatch(agent, question.node_name, question.node.uid):",
        "if text := '':",
        f"{SPIRE}::test_selectors_that_name_another_node",
        f"{SPIRE}::test_the_directory_has_another_uid",
    ),
    _one(
        "spire-entries",
        "controller/spire/judgement.py",
        "            if not _has(entry, wanted):",
        "            if not any(_has(x, wanted) for x in entries):",
        f"{SPIRE}::test_one_weak_entry_is_enough",
    ),
    _one(
        "spire-age",
        "controller/spire/judgement.py",
        "    if agents_ns < limits.age_ns and entries_ns < max(limits.age_ns, ENTRIES_AGE_NS):",
        "    if agents_ns >= 0:",
        f"{SPIRE}::test_the_last_snapshot_counts_for_the_grace_and_no_longer",
    ),
    _one(
        "spire-server-identity",
        "gpuwarden/identity/tunnel.py",
        "if found != self.expected:",
        "if False:",
        f"{SPIRE_API}::test_another_workload_of_the_trust_domain",
    ),
    _one(
        "log-chain",
        "gpuwarden/audit/chain.py",
        "elif record.prev != self.head.digest:",
        "elif False:",
        f"{AUDIT_CHAIN}::test_any_flipped_bit_is_found_with_its_number",
    ),
    Weakening(
        "log-order",
        (
            Edit("gpuwarden/audit/chain.py", "if record.seq != self._due:", "if False:"),
            Edit(
                "gpuwarden/audit/chain.py", "elif record.prev != self.head.digest:", "elif False:"
            ),
        ),
        (
            f"{AUDIT_CHAIN}::test_any_other_order_is_found",
            f"{AUDIT_CHAIN}::test_any_missing_records_are_found",
            f"{AUDIT_CHAIN}::test_any_repeated_record_is_found",
        ),
    ),
    _one(
        "log-root",
        "gpuwarden/audit/tree_check.py",
        "if self._frontier is not None and self._frontier.root() != head.root:",
        "if False:",
        f"{AUDIT_TREE}::test_a_log_that_was_rewritten_as_a_whole_is_found",
        f"{AUDIT_TREE}::test_the_fault_is_at_the_first_checkpoint_behind_the_change",
    ),
    _one(
        "log-witness",
        "gpuwarden/audit/witness.py",
        "    except ProofError:\n        return False\n",
        "    except ProofError:\n        return True\n",
        f"{WITNESS}::test_no_fork_before_the_last_checkpoint_is_ever_believed",
    ),
    _one(
        "log-reset",
        "gpuwarden/audit/witness.py",
        "    if prev is None:\n        return _reset(",
        "    if prev is None:\n        return fresh, None\n        _reset(",
        f"{WITNESS}::test_a_new_log_without_a_name_is_a_reset",
    ),
    _one(
        "log-key",
        "gpuwarden/audit/witness.py",
        "        successor(known.key, key, shown.key_changes)\n",
        "        pass\n",
        f"{WITNESS}::test_another_key_for_the_same_log_is_inconsistent",
    ),
    _one(
        "log-accusations",
        "controller/witness_alarms.py",
        "if not is_bounded or self._recorded[key] >= MAX_RECORDS:",
        "if False:",
        "tests/unit/controller/test_witness_alarms.py::test_what_nodes_say_fills_no_log",
    ),
    _one(
        "kept-evidence",
        "gpuwarden/audit/exhibit.py",
        "    if exhibit.digest != digest:\n",
        "    if False:\n",
        f"{EXHIBITS}::test_no_change_of_it_passes",
    ),
    _one(
        "no-grant-without-record",
        "controller/rpc/evidence_intake.py",
        "await self._ports.audit.grant(",
        "self._ports.audit.note(",
        f"{RPC}::test_nothing_is_granted_while_the_log_is_broken",
        f"{RPC}::test_a_grant_waits_for_its_record_and_a_refusal_meanwhile_wins",
    ),
    _one(
        "terminal",
        "gpuwarden/cli/terminal.py",
        "    if text.isprintable():\n",
        "    if text:\n",
        "tests/unit/cli/test_cli_terminal.py::test_no_control_character_survives",
    ),
    _one(
        "lines-of-the-log",
        "gpuwarden/telemetry/logs.py",
        '    text = _CONTROL.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)\n',
        "",
        "tests/unit/telemetry/test_logs.py::test_untrusted_text_cannot_forge_a_line",
    ),
    _one(
        "secrets-in-logs",
        "gpuwarden/telemetry/logs.py",
        "        if _SECRET_NAME.search(name):",
        "        if False:",
        "tests/unit/telemetry/test_logs.py::test_what_is_called_a_secret_never_comes_out",
    ),
    _one(
        "level",
        "controller/verifier/acceptability.py",
        "if level.rank < policy.min_level.rank:",
        "if False:",
        f"{ORDER}::test_a_defect_is_refused_with_its_code_step_and_effect",
    ),
    _one(
        "level-of-the-pod",
        "controller/scheduling/judge.py",
        "if acceptance.level not in self._levels:",
        "if False:",
        f"{VERDICTS}::test_level_by_pod_class_and_cluster",
    ),
    _one(
        "level-in-the-hash",
        "gpuwarden/evidence/class_document.py",
        "level=str(level),",
        'level="L0",',
        f"{DECODER}::test_every_part_of_the_context_changes_the_class_hash",
    ),
    _one(
        "protocol",
        "controller/verifier/binding.py",
        "if header.protocol != PROTOCOL:",
        "if False:",
        f"{ROUNDS}::test_a_payload_of_another_protocol_is_named_so",
    ),
    _one(
        "dead-watches",
        "gpuwarden/identity/watchdog.py",
        "        if not behind:\n",
        "        if not behind or now:\n",
        f"{OUTAGE}::test_the_watch_of_the_library_dies_in_silence_and_the_keeper_goes_on",
        f"{KEEPER}::test_a_watch_that_died_in_silence_is_found_by_two_probes",
    ),
    _one(
        "expired-svid-of-ours",
        "gpuwarden/identity/keeper.py",
        "return svid if svid is not None and self._wall() < end_of(svid) else None",
        "return svid",
        f"{KEEPER}::test_an_expired_svid_is_not_served_even_before_the_keeper_has_noticed",
    ),
    _one(
        "withdrawn-svid-of-ours",
        "gpuwarden/identity/keeper.py",
        "        if self._dog.withdrawn:\n",
        "        if False:\n",
        f"{KEEPER}::test_a_redacted_identity_is_dropped_after_the_second_denial",
    ),
    _one(
        "private-socket",
        "gpuwarden/identity/tunnel.py",
        "if process != os.getpid():",
        "if False:",
        f"{TUNNEL}::test_another_process_at_the_socket_gets_nothing",
    ),
    _one(
        "denials-outlive-the-process",
        "controller/denial_follower.py",
        "        if denied or lost:\n",
        "        if False:\n",
        f"{FOLLOWER}::test_a_denial_from_before_the_start_quarantines_with_its_cause",
    ),
    _one(
        "denials-end-by-acts-alone",
        "controller/denial_follower.py",
        "if record is not None and record.has_lifted(ended):",
        "if True:",
        f"{FOLLOWER}::test_a_denial_that_nobody_lifted_was_lost_and_is_written_again",
        f"{FOLLOWER}::test_a_denial_of_ours_that_is_lost_before_it_was_seen_is_written_again",
    ),
    _one(
        "denials-of-the-log",
        "controller/denial_follower.py",
        "self._denied = {**logged, **self._denied}",
        "self._denied = {**self._denied}",
        f"{FOLLOWER}::test_the_log_knows_of_a_denial_that_the_store_has_lost",
    ),
    _one(
        "denials-in-the-log-at-once",
        "controller/fleet/denials.py",
        "            self._note(node, denial)\n",
        "",
        f"{FOLLOWER}::test_a_denial_of_ours_is_noted_at_once_and_once",
    ),
    _one(
        "grants-of-the-log",
        "controller/binding/footing_keeper.py",
        "waiting = [x for x in lost if not await self._hold(x)]",
        "waiting: list[LoggedGrant] = []",
        f"{LOST}::test_what_the_log_gave_away_is_held_until_the_node_shows_no_use",
    ),
    _one(
        "attempts-that-were-bound",
        "controller/ledger/recovery.py",
        "    return grant.bound and held.state is HolderState.PROPOSED\n",
        "    return False\n",
        f"{LOST}::test_an_attempt_of_the_copy_whose_pod_was_bound_after_it_does_not_expire",
    ),
    _one(
        "log-is-read-first",
        "controller/ledger/footing.py",
        "    if not footing.recalled:\n        return Refusal(",
        "    if False:\n        return Refusal(",
        f"{LOST}::test_before_the_log_was_read_nothing_is_granted",
    ),
    _one(
        "waiting-pods-are-touched",
        "controller/binding/footing_keeper.py",
        "                await ports.pods.touch(grant.pod)\n",
        "                pass\n",
        f"{LOST}::test_a_pod_that_waits_again_is_touched_and_its_old_gpu_let_go_when_unused",
    ),
    _one(
        "live-pods-keep-their-gpus",
        "controller/binding/footing_keeper.py",
        "return refusal or self._held_by_pods(gpus)",
        "return refusal",
        f"{LOST}::test_a_record_that_is_ended_by_hand_gives_a_live_pods_gpu_to_nobody",
    ),
    _one(
        "pods-put-back-are-proven-so",
        "controller/binding/apart.py",
        "if holder.reservation in self._proven:",
        "if True:",
        "tests/unit/controller_binding/test_apart.py"
        "::test_it_counts_as_gone_once_the_api_server_has_said_so",
    ),
    _one(
        "places-taken-unseen",
        "controller/kube/reservation_store.py",
        "            and object_uid(before) != known[key].uid\n",
        "            and False\n",
        "tests/integration/test_kube_ledger_store.py"
        "::test_a_record_whose_place_another_took_unseen_is_told",
    ),
    _one(
        "only-operators-act",
        "controller/rpc/authorization.py",
        "_OPERATORS: Final = frozenset({CallerKind.OPERATOR, CallerKind.LOCAL})",
        "_OPERATORS: Final = _READERS",
        "tests/integration/test_operator_rpc.py::test_nobody_else_acts",
        "tests/unit/rpc/test_authorization.py::test_matrix",
    ),
    _one(
        "acts-on-what-was-shown",
        "controller/fleet/operator_decisions.py",
        "    if expected == shown.version:",
        "    if True:",
        f"{DECISIONS}::test_something_else_than_what_was_shown_is_not_accepted",
    ),
    _one(
        "acts-on-the-record",
        "controller/operator_desk.py",
        "            await self._ports.audit.grant(_record(act, order, before, decided))\n",
        "",
        "tests/unit/controller/test_operator_desk.py"
        "::test_nothing_happens_before_the_record_is_durable",
    ),
    _one(
        "news-wins",
        "controller/fleet/node_trust.py",
        "if view.blocked is not None and issued <= record.blocked_ns:",
        "if False:",
        f"{TRUST}::test_evidence_asked_for_before_a_revocation_does_not_end_it",
    ),
    _one(
        "api-authentication",
        "controller/http_api/endpoint.py",
        "        if isinstance(caller, Refusal):\n",
        "        if isinstance(caller, Refusal):\n"
        '            return ApiCaller("anybody", reads=True, operates=True)\n',
        f"{API_TLS}::test_nobody_else_confirms",
        f"{API_TLS}::test_who_reads",
    ),
    _one(
        "api-audience",
        "controller/kube/token_reviewer.py",
        "if not status.authenticated or audience not in (status.audiences or ()):",
        "if not status.authenticated:",
        f"{REVIEW_ANSWERS}::test_what_does_not_count",
    ),
    _one(
        "api-body-last",
        "controller/http_api/endpoint.py",
        "                caller = await self._admitted(described, request)\n",
        "                await self._bodies.receive(request)\n"
        "                caller = await self._admitted(described, request)\n",
        f"{API_TLS}::test_nothing_of_a_body_is_read_before_the_caller_may_call",
    ),
    _one(
        "api-readers",
        "controller/http_api/callers.py",
        "(access is Access.READER and caller.reads)",
        "access is Access.READER",
        f"{API_TLS}::test_who_reads",
        f"{API_CALLERS}::test_matrix",
    ),
    _one(
        "api-own-pod",
        "controller/http_api/callers.py",
        "if caller.operates or caller.pod == pod:",
        "if caller.operates or caller.pod is not None:",
        f"{API_CALLERS}::test_a_token_speaks_for_its_own_pod_alone",
        f"{API_TLS}::test_nobody_else_confirms",
    ),
    _one(
        "api-bound-pod",
        "controller/ledger/confirm.py",
        "refusal = _against(holder, pod) or _against_place(record, holder, pod)",
        "refusal = None",
        f"{API_FINALIZE}::test_only_a_live_pod_that_is_bound_under_the_id_counts",
    ),
    _one(
        "api-wrong-gpu",
        "controller/http_api/finalizing.py",
        "    if theirs and key_of(request.gpu_uuid) not in theirs:\n",
        "    if False:\n",
        f"{API_FINALIZE}::test_what_does_not_fit_changes_nothing",
    ),
    _one(
        "api-forged-id",
        "controller/http_api/finalizing.py",
        "    return ids is not None and ids.is_authentic(held.reservation, subject)",
        "    return ids is not None and bool(subject)",
        f"{API_FINALIZE}::test_a_reservation_that_is_over_has_expired_and_a_forged_one_is_unknown",
    ),
    _one(
        "api-roots-of-now",
        "controller/http_api/authentication.py",
        "        found = caller_of(\n            facts,\n            self._ports.roots(),\n",
        '        self._first = getattr(self, "_first", None) or self._ports.roots()\n'
        "        found = caller_of(\n            facts,\n            self._first,\n",
        f"{API_TLS}::test_intermediates_are_followed_and_roots_are_those_of_now",
    ),
    _one(
        "api-time-of-now",
        "controller/http_api/authentication.py",
        "            at=self._ports.wall(),\n",
        "            at=datetime.now().astimezone(),\n",
        f"{API_TLS}::test_a_connection_outlives_no_certificate",
    ),
    _one(
        "api-review-memory",
        "controller/http_api/token_reviews.py",
        "        while len(kept) >= self._limits.kept:\n",
        "        while False:\n",
        f"{API_REVIEWS}::test_no_token_is_kept_and_the_memory_is_bounded",
    ),
    _one(
        "api-reviews-at-once",
        "controller/http_api/token_reviews.py",
        "            len(self._running) >= self._limits.at_once\n",
        "            False\n",
        f"{API_REVIEWS}::test_the_same_token_is_asked_about_once_at_a_time",
    ),
    _one(
        "api-reviews-of-one-address",
        "controller/http_api/token_reviews.py",
        "            or self._asking[address] >= self._limits.at_once_from_one_address\n",
        "            or False\n",
        f"{API_REVIEWS}::test_one_address_does_not_take_what_others_need",
    ),
    _one(
        "api-accepted-tokens-stay",
        "controller/http_api/token_reviews.py",
        "        kept = self._refused if found is None else self._accepted\n",
        "        kept = self._accepted\n",
        f"{API_REVIEWS}::test_invented_tokens_push_no_good_one_out",
    ),
    _one(
        "api-rate",
        "controller/http_api/endpoint.py",
        "access_refusal(caller, described.access) or limited",
        "access_refusal(caller, described.access)",
        f"{API_TLS}::test_a_pod_that_floods_is_slowed_and_others_are_not",
    ),
    _one(
        "settles-own-gpus",
        "controller/binding/settlement.py",
        "        if gpu is None or gpu not in shown.gpus:\n",
        "        if gpu is None:\n",
        f"{SETTLEMENT}::test_only_the_node_s_own_gpus_and_its_guarded_pods",
    ),
    _one(
        "settles-known-pods",
        "controller/binding/settlement.py",
        "if since_ns < report.asked_ns)",
        "if since_ns)",
        f"{SETTLEMENT}::test_a_report_counts_once_the_pod_was_known_before_it_was_asked_for",
    ),
    _one(
        "settles-after-the-earlier-pod",
        "controller/ledger/settlement.py",
        "    return report.may_run(holder.pod.uid)",
        "    return False",
        f"{SETTLED}::test_a_pod_waits_for_an_earlier_one_of_its_name",
    ),
    _one(
        "release-waits-for-the-cgroup",
        "controller/ledger/release.py",
        "        if self.users is None or self.pods is None or uid in self.pods:\n",
        "        if self.users is None:\n",
        f"{RELEASE}::test_use_and_what_cannot_be_read_begin_the_count_anew",
    ),
    _one(
        "pods-of-the-node",
        "agent/claims/running_pods.py",
        "        if first is None or _pod(first) is not None or os.getpid() == int(_INIT):\n",
        "        if False:\n",
        f"{RUNNING_PODS}::test_a_reader_inside_a_pod_of_its_own_sees_nothing_of_the_node",
    ),
    _one(
        "use-compared",
        "controller/binding/use_faults.py",
        "            elif not any(_holds(case, card, uid) for card in cards):\n",
        "            elif not case.pods.with_uid(uid):\n",
        f"{USE_FAULTS}::test_a_reserved_pod_with_another_gpu",
        f"{USE_FAULTS}::test_a_settled_pod_that_uses_more_than_it_was_given",
    ),
    _one(
        "bundle-settings",
        "gpuwarden/support/disclosed_settings.py",
        "    return key.spec.kind.closed or source == _DEFAULT",
        "    return True",
        TOLD,
        FROM_OUTSIDE,
    ),
    _one(
        "bundle-texts",
        "gpuwarden/support/known_words.py",
        "    return sorted(found)[:_MOST]",
        "    return [*sorted(found)[:_MOST], text]",
        TOLD,
        FROM_OUTSIDE,
    ),
    _one(
        "bundle-metrics",
        "gpuwarden/support/exposition.py",
        "        if _may_leave(line):",
        "        if line:",
        TOLD,
        FROM_OUTSIDE,
    ),
    _one(
        "bundle-nodes",
        "controller/support/node_lines.py",
        "    return text if text is not None and _VERSION.fullmatch(text) else None",
        "    return text",
        TOLD,
    ),
    _one(
        "bundle-answers",
        "gpuwarden/support/known_answers.py",
        "    return text if isinstance(text, str) and text in known else None",
        "    return text if isinstance(text, str) else None",
        FROM_OUTSIDE,
    ),
)

SAMPLE: Final = ("roles", "signature", "nonce-once", "pins", "lease-at-each-decision", "log-chain")
"""Taken out in every test run; `make weakened` takes out all."""
