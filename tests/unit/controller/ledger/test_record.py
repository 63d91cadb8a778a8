import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.ledger.record import (
    ENDS,
    MAX_GPUS,
    MAX_HOLDERS,
    MOVES,
    GpuRecord,
    HolderState,
    MoveRefusedError,
    Origin,
    PodRef,
    RecordInvalidError,
    demand_gpus,
    demand_move,
    in_claiming_order,
    key_of,
)
from controller.ledger.reservation_id import (
    ReservationIds,
    ReservationKey,
    ReservationSubject,
    is_early_id,
    nonce_of,
    request_nonce,
)
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, in_state, record

LISTED = {
    ("Proposed", "Confirmed"),
    ("Proposed", "Releasing"),
    ("Proposed", "Expired"),
    ("Proposed", "Revoked"),
    ("Confirmed", "Releasing"),
    ("Releasing", "Released"),
}


@pytest.mark.parametrize("state", HolderState)
@pytest.mark.parametrize("to", HolderState)
def test_only_listed_moves_are_made(state: HolderState, to: HolderState) -> None:
    assert ((state, to) in MOVES) == ((state.value, to.value) in LISTED)
    if (state, to) in MOVES:
        demand_move(state, to)
        assert in_state(state).moved("v1.k.uid-0", to).holders[0].state is to
    else:
        with pytest.raises(MoveRefusedError, match=f"from {state} to {to}"):
            in_state(state).moved("v1.k.uid-0", to)


def test_nothing_leads_out_of_an_end() -> None:
    assert {state for state in HolderState if state.is_end} == ENDS
    assert not [x for x in MOVES if x[0].is_end]


def test_each_change_is_the_next_version() -> None:
    first = record()
    second = first.moved("v1.k.uid-0", HolderState.CONFIRMED)
    assert (first.version, second.version) == (1, 2)
    assert first.holders[0].state is HolderState.PROPOSED


def test_the_last_end_closes_a_record_and_an_earlier_one_leaves_the_others() -> None:
    shared = record(holder(), holder(pod=OTHER_POD), share=SHARE)
    one = shared.moved("v1.k.uid-0", HolderState.REVOKED)
    assert [x.reservation for x in one.holders] == ["v1.k.uid-1"]
    assert not one.is_closed
    closed = one.moved("v1.k.uid-1", HolderState.EXPIRED)
    assert closed.is_closed
    assert closed.holders[0].state is HolderState.EXPIRED
    closed.demand_valid()


def test_a_move_of_an_unknown_reservation_is_an_error() -> None:
    with pytest.raises(KeyError, match="v1\\.k\\.other"):
        record().moved("v1.k.other", HolderState.CONFIRMED)


def test_parts_are_found_by_reservation_and_by_pod() -> None:
    shared = record(holder(), holder(pod=OTHER_POD), share=SHARE)
    assert shared.holder("v1.k.uid-1") == shared.of_pod("uid-1") == shared.holders[1]
    assert shared.holder("v1.k.uid-2") is None
    assert shared.of_pod("uid-2") is None


def test_claiming_order_and_names_go_by_lower_case() -> None:
    assert in_claiming_order(("GPU-b", "GPU-A", "MIG-a")) == ("GPU-A", "GPU-b", "MIG-a")
    assert key_of("GPU-8A") == "gpu-8a"
    assert record(gpu="GPU-A").key == "gpu-a"


@pytest.mark.parametrize(
    "gpus",
    [
        (),
        ("GPU-b", "GPU-a"),
        ("GPU-a", "GPU-a"),
        ("GPU-A", "GPU-a"),
        ("0",),
        ("GPU-a/1/0",),
        ("GPU-a.",),
        ("GPU-" + "a" * 249,),
        tuple(f"GPU-{n:03}" for n in range(MAX_GPUS + 1)),
    ],
)
def test_gpus_are_uuids_in_order(gpus: tuple[str, ...]) -> None:
    with pytest.raises(RecordInvalidError, match="gpus: "):
        demand_gpus(gpus)


def test_64_gpus_are_the_most_of_a_reservation() -> None:
    gpus = tuple(f"GPU-{n:02}" for n in range(65))
    demand_gpus(gpus[:64])
    with pytest.raises(RecordInvalidError, match=r"gpus: 65, expected 1\.\.64"):
        demand_gpus(gpus)


def test_64_pods_may_share_a_gpu() -> None:
    pods = (PodRef("n", uid=f"u-{n:02}") for n in range(64))
    record(*(holder(pod=x) for x in pods), share=SHARE).demand_valid()


def test_the_words_of_stored_records_stay_what_they_were() -> None:
    assert [x.value for x in Origin] == ["binding", "admission", "kubelet"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (record(holder(reservation="Not one")), "reservation"),
        (record(holder(pod=replace(POD, namespace=""))), "namespace"),
        (record(holder(answers=0)), "answers"),
        (record(holder(call="x")), "call"),
        (record(holder("GPU-b")), "does not name GPU-a"),
        (record(holder("GPU-b", "GPU-a")), "gpus: expected each once, sorted"),
        (record(holder(), holder(pod=OTHER_POD)), "share group"),
        (record(holder(pod=OTHER_POD), holder(), share=SHARE), "sorted"),
        (record(holder(), holder(), share=SHARE), "sorted"),
        (
            record(holder(state=HolderState.EXPIRED), holder(pod=OTHER_POD), share=SHARE),
            "an ended one",
        ),
        (replace(record(), holders=()), "holders: 0"),
        (
            record(
                *(holder(pod=PodRef("n", uid=f"u-{n:03}")) for n in range(MAX_HOLDERS + 1)),
                share=SHARE,
            ),
            "holders: 65",
        ),
        (replace(record(), node=""), "node"),
        (replace(record(), version=0), "version"),
        (replace(record(), gpu="1"), "gpus"),
    ],
)
def test_records_of_nobody_are_refused(wrong: GpuRecord, text: str) -> None:
    with pytest.raises(RecordInvalidError, match=text):
        wrong.demand_valid()


def test_a_restored_pod_may_be_beside_a_holder() -> None:
    record(holder(), holder(pod=OTHER_POD, restored=True)).demand_valid()


VECTORS = json.loads(
    (Path(__file__).resolve().parents[3] / "golden" / "reservation_ids.json").read_text()
)
OLD, NEW = ReservationKey("old", b"o" * 32), ReservationKey("new", b"n" * 32)
SUBJECT = ReservationSubject("team-a", "gpu-1", ("GPU-a", "GPU-b"), "uid-0")
EARLY = replace(SUBJECT, pod_uid=None)
NONCE = "0" * 32
IDS = ReservationIds("lab", (NEW, OLD))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda x: x["name"])
def test_the_vectors_are_made_as_documented(vector: dict[str, Any]) -> None:
    """By another implementation: JSON with sorted keys is canonical for these documents."""
    document = {
        key: vector[key] for key in ("cluster", "namespace", "pod", "nonce", "node", "gpus")
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    message = b"gpuwarden.dev/reservation/v1\n" + text
    mac = hmac.new(bytes.fromhex(vector["secret"]), message, hashlib.sha256).hexdigest()
    parts = ["v1", vector["keyId"], *([vector["nonce"]] if vector["nonce"] else []), mac]
    assert vector["id"] == ".".join(parts)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda x: x["name"])
def test_the_vectors_are_known(vector: dict[str, Any]) -> None:
    key = ReservationKey(vector["keyId"], bytes.fromhex(vector["secret"]))
    subject = ReservationSubject(
        vector["namespace"], vector["node"], tuple(vector["gpus"]), vector["pod"]
    )
    ids = ReservationIds(vector["cluster"], (key,))
    assert ids.make(subject, vector["nonce"]) == vector["id"]
    assert ids.is_authentic(vector["id"], subject)


def test_the_first_key_writes_and_all_read() -> None:
    old = ReservationIds("lab", (OLD,)).make(SUBJECT)
    assert IDS.make(SUBJECT).startswith("v1.new.")
    assert IDS.is_authentic(old, SUBJECT)
    assert not ReservationIds("lab", (NEW,)).is_authentic(old, SUBJECT)


def test_an_id_by_a_key_that_was_removed_is_told_from_others() -> None:
    """By its form and the key's name: its MAC says nothing then."""
    left = ReservationIds("lab", (NEW,))
    for old in (
        ReservationIds("lab", (OLD,)).make(SUBJECT),
        ReservationIds("lab", (OLD,)).make(EARLY, NONCE),
    ):
        assert left.lacks_key_of(old)
        assert not IDS.lacks_key_of(old)
        assert not left.lacks_key_of(old[:-1])
    assert not left.lacks_key_of(IDS.make(SUBJECT)[:-1] + "0")
    assert not left.lacks_key_of("")


def test_the_same_subject_has_the_same_id() -> None:
    assert IDS.make(SUBJECT) == IDS.make(SUBJECT)


@pytest.mark.parametrize(
    "other",
    [
        replace(SUBJECT, namespace="team-b"),
        replace(SUBJECT, node="gpu-2"),
        replace(SUBJECT, gpus=("GPU-a",)),
        replace(SUBJECT, pod_uid="uid-1"),
        replace(SUBJECT, pod_uid=None),
    ],
)
def test_a_copy_on_another_subject_is_known_as_one(other: ReservationSubject) -> None:
    text = IDS.make(SUBJECT)
    assert IDS.is_authentic(text, SUBJECT)
    assert not IDS.is_authentic(text, other)
    assert not ReservationIds("other", (NEW, OLD)).is_authentic(text, SUBJECT)


def test_an_early_one_is_of_its_nonce_and_not_of_a_pod() -> None:
    text = IDS.make(EARLY, NONCE)
    assert IDS.is_authentic(text, EARLY)
    assert IDS.is_authentic(text, SUBJECT)
    assert not IDS.is_authentic(text, replace(EARLY, node="gpu-2"))
    assert not IDS.is_authentic(text.replace(NONCE, "1" * 32), EARLY)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:0],
        lambda x: x.upper(),
        lambda x: x.replace("v1.", "v2."),
        lambda x: x.replace(".new.", ".old."),
        lambda x: x.replace(".new.", ".none."),
        lambda x: x[:-1],
        lambda x: x[:-1] + ("0" if x[-1] != "0" else "1"),
        lambda x: f"{x}\n",
        lambda x: f"{x}é",
        lambda x: x.replace(".new.", f".new.{NONCE}."),
    ],
)
def test_anything_else_is_a_forgery(change: Any) -> None:
    assert not IDS.is_authentic(change(IDS.make(SUBJECT)), SUBJECT)


@pytest.mark.parametrize(
    ("subject", "nonce"), [(SUBJECT, NONCE), (EARLY, None), (EARLY, "0"), (EARLY, "G" * 32)]
)
def test_an_id_is_of_a_pod_or_of_a_nonce(subject: ReservationSubject, nonce: str | None) -> None:
    with pytest.raises(ValueError, match="either a pod UID or a nonce"):
        IDS.make(subject, nonce)


def test_gpus_come_in_claiming_order() -> None:
    with pytest.raises(RecordInvalidError, match="sorted"):
        IDS.make(replace(SUBJECT, gpus=("GPU-b", "GPU-a")))


@pytest.mark.parametrize(
    ("key_id", "secret", "text"),
    [
        ("", b"x" * 32, "key id"),
        ("a.b", b"x" * 32, "key id"),
        ("a" * 17, b"x" * 32, "key id"),
        ("a", b"x" * 31, "32 bytes"),
    ],
)
def test_a_key_is_long_enough_and_named(key_id: str, secret: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ReservationKey(key_id, secret)


def test_keys_have_names_of_their_own_and_show_no_secret() -> None:
    for keys in [(), (OLD, replace(NEW, key_id="old"))]:
        with pytest.raises(ValueError, match="a name of its own"):
            ReservationIds("lab", keys)
    assert "ooo" not in repr(OLD)


def test_an_early_id_is_known_by_its_form() -> None:
    early = IDS.make(EARLY, NONCE)
    assert (nonce_of(early), is_early_id(early)) == (NONCE, True)
    for other in (IDS.make(SUBJECT), "", "dry-run", early + "0", f"{early}\n"):
        assert (nonce_of(other), is_early_id(other)) == (None, False)


def test_the_same_request_has_the_same_nonce() -> None:
    nonce = request_nonce("team-a", "request-0")
    assert nonce == request_nonce("team-a", "request-0")
    assert nonce not in {request_nonce("team-b", "request-0"), request_nonce("team-a", "request-1")}
    assert nonce_of(IDS.make(EARLY, nonce)) == nonce
