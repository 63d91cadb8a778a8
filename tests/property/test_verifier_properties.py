from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fleet.attestation_result import Accepted, Refused
from controller.fleet.enrollment import MAX_SUPERSEDED
from gpuwarden.evidence.model import TYPE_FAILURE_NOTICE
from gpuwarden.reasons import ReasonCode
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import WALL, Scene

CA = SpiffeCa(at=WALL)
GOOD = Scene(ca=CA)
STREAM = GOOD.opened()
ISSUED = GOOD.challenge(STREAM)
MESSAGE = GOOD.signed(STREAM, ISSUED)
FIELDS = ("stream_id", "challenge_id", "nonce", "payload", "signature")


@settings(max_examples=300)
@given(name=st.sampled_from(FIELDS), position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused(name: str, position: int, bit: int) -> None:
    data = bytearray(getattr(MESSAGE, name))
    data[position % len(data)] ^= 1 << bit
    changed = replace(MESSAGE, **{name: bytes(data)})  # type: ignore[arg-type] # bytes fields only
    assert isinstance(GOOD.appraise(STREAM, changed, ISSUED), Refused)
    assert isinstance(GOOD.appraise(STREAM, MESSAGE, ISSUED), Accepted)


@settings(max_examples=50)
@given(kind=st.text(max_size=60).filter(lambda x: x != MESSAGE.payload_type))
def test_any_other_payload_type_is_refused(kind: str) -> None:
    assert isinstance(GOOD.appraise(STREAM, replace(MESSAGE, payload_type=kind), ISSUED), Refused)


def test_evidence_does_not_pass_as_bad_news() -> None:
    news = replace(
        MESSAGE, payload_type=TYPE_FAILURE_NOTICE, nonce=bytes.fromhex(ISSUED.spare_nonce)
    )
    assert isinstance(GOOD.appraise(STREAM, news, ISSUED), Refused)


@settings(max_examples=40)
@given(order=st.lists(st.integers(min_value=0, max_value=4), min_size=1, max_size=10))
def test_the_line_of_processes_only_moves_forward(order: list[int]) -> None:
    """Each process opens a new stream: the present one and new ones pass, former ones never."""
    scene, present, former = Scene(ca=CA), -1, set[int]()
    for number in order:
        scene.hello["instance_id"] = f"{number:032x}"
        result = scene.run()
        if number in former:
            assert isinstance(result, Refused)
            assert result.code is ReasonCode.DUPLICATE_AGENT
            continue
        assert isinstance(result, Accepted)
        scene.remember(result)
        if present not in {-1, number}:
            former.add(present)
        present = number
    assert len(former) < MAX_SUPERSEDED
