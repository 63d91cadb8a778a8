from dataclasses import replace

import pytest

from controller.explain.pod_document import read_pod
from controller.explain.stages import StageState
from controller.ledger.record import HolderState, PodRef
from controller.placement.pod import PodDecodeError
from gpuwarden.audit.reading import Recent
from gpuwarden.audit.record import LogRecord, decode_record
from tests.builders.accounts import (
    GPU,
    OTHER_GPU,
    OTHER_UID,
    UID,
    account,
    held,
    node_of,
    pod_document,
    process,
)
from tests.builders.audit_log import GENESIS, line

# --- Whose account it is, above all where the pod is gone


def recent(*uids: str) -> Recent:
    records = (
        decode_record(line(n + 1, GENESIS, refs={"uid": x}).removesuffix(b"\n"))
        for n, x in enumerate(uids)
    )
    return Recent(tuple(records), "2026-03-01T12:00:00.000Z")


def test_a_pod_that_is_gone_and_still_holds() -> None:
    found = account(None, held(HolderState.RELEASING), node=node_of(process()))
    assert found is not None
    assert (found.case.uid, found.case.pod, found.given) == (UID, None, "")
    assert [x.state for x in found.stages] == [
        StageState.OVER,
        StageState.REACHED,
        StageState.OVER,
        StageState.UNNEEDED,
        StageState.REACHED,
    ]


def test_a_pod_that_is_gone_for_good_lives_in_the_log() -> None:
    found = account(None, recent=recent(OTHER_UID, UID, ""))
    assert found is not None
    assert found.case.uid == UID
    assert [x.state for x in found.stages][:3] == [StageState.OVER] * 3


def test_of_a_pod_that_nobody_knows_there_is_no_account() -> None:
    assert account(None) is None
    assert account(None, recent=Recent((), "2026-03-01T12:00:00.000Z")) is None


def test_what_an_earlier_pod_of_the_name_holds_is_not_its_own() -> None:
    before = held(HolderState.RELEASING, OTHER_GPU, OTHER_UID, reservation="v1.k1.a")
    found = account(pod_document(), held(), before)
    assert found is not None
    assert found.case.reserved == (GPU,)
    assert [entry.record.gpu for entry, _ in found.others] == [OTHER_GPU]


def test_a_reservation_is_found_by_uid_also_while_it_has_no_name() -> None:
    part = held().holders[0]
    nameless = replace(held(), holders=(replace(part, pod=replace(part.pod, name=None)),))
    found = account(pod_document(), nameless)
    assert found is not None
    assert found.case.reserved == (GPU,)


def test_an_early_reservation_is_found_by_the_id_that_the_pod_carries() -> None:
    part = held(HolderState.PROPOSED).holders[0]
    unborn = replace(held(), holders=(replace(part, pod=PodRef("team-a", owner="o")),))
    found = account(pod_document(node="", phase="Pending"), unborn)
    assert found is not None
    assert found.case.reserved == (GPU,)
    assert account(None, unborn) is None
    other = account(pod_document({}, node="", phase="Pending"), unborn)
    assert other is not None
    assert other.case.reserved == ()


def answer(seq: int, decision: str = "allowed", **refs: str) -> LogRecord:
    found = {"uid": UID, "node": "gpu-1", "evidence": f"{seq}" * 64} | refs
    made = line(seq, GENESIS, kind="bind.decision", decision=decision, refs=found)
    return decode_record(made.removesuffix(b"\n"))


def test_the_binding_webhook_s_answer_says_by_which_evidence_it_was_bound() -> None:
    records = (
        answer(1),
        answer(2),
        answer(3, "refused"),
        answer(4, uid=OTHER_UID),
        answer(5, node="gpu-2"),
    )
    found = account(pod_document(), held(), recent=Recent(records, "2026-03-01T12:00:00.000Z"))
    assert found is not None
    bound = found.stages[2]
    assert bound.evidence == "2" * 64
    assert bound.findings[1] == (
        "the binding webhook allowed it at 2026-03-01T12:00:00.000Z, by the evidence shown here:"
        " record 2"
    )


def test_without_keys_nobody_says_whose_an_id_is() -> None:
    found = account(pod_document(), held(), ids=None)
    assert found is not None
    assert found.case.is_authentic is None
    assert not found.is_wrong


def test_what_is_no_pod_is_refused() -> None:
    with pytest.raises(PodDecodeError, match="not a Pod"):
        read_pod(b'{"metadata":{"uid":7}}')


def test_a_pod_with_nothing_in_it() -> None:
    found = read_pod(b'{"status":{"containerStatuses":[{},{"state":{"terminated":{}}}]}}')
    assert (found.uid, found.started_at, found.scheduled, found.has_ended) == ("", "", None, False)


def test_the_first_start_counts() -> None:
    states = [
        {"state": {"running": {"startedAt": "2026-11-27T20:00:09Z"}}},
        {"state": {"terminated": {"startedAt": "2026-11-27T20:00:05Z"}}},
    ]
    found = account(pod_document(containerStatuses=states))
    assert found is not None
    assert found.case.pod is not None
    assert found.case.pod.started_at == "2026-11-27T20:00:05Z"
