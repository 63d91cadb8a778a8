"""A record's one text: what it is, and that nothing else is taken for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fleet.enrollment import Candidate, EnrolledGpu, EnrollmentRecord, QuarantineEntry
from controller.fleet.faults import Fault
from controller.store.enrollments import VERSION, RecordInvalidError, decode_record, encode_record

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MAYBE = st.none() | TEXT
PINS = st.lists(
    st.builds(
        EnrolledGpu,
        TEXT,
        MAYBE,
        MAYBE,
        MAYBE,
        st.booleans(),
        st.booleans(),
        st.lists(TEXT, max_size=2).map(tuple),
    ),
    max_size=3,
).map(tuple)
CANDIDATES = st.builds(Candidate, TEXT, MAYBE, MAYBE, PINS, TEXT, MAYBE)
QUARANTINE_ENTRIES = st.builds(
    QuarantineEntry, TEXT, TEXT, TEXT, st.integers(0, 2**63 - 1), st.none() | CANDIDATES
)
RECORDS = st.builds(
    EnrollmentRecord,
    TEXT,
    MAYBE,
    MAYBE,
    PINS,
    MAYBE,
    st.lists(TEXT, max_size=3).map(tuple),
    st.none() | QUARANTINE_ENTRIES,
    st.none() | st.integers(0, 2**63 - 1),
    MAYBE,
    MAYBE,
    st.lists(
        st.builds(
            Fault,
            TEXT,
            st.integers(0, 2**31),
            TEXT,
            st.integers(0, 2**53),
            st.none() | st.just((7,)),
            st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
)


@settings(max_examples=100)
@given(RECORDS, RECORDS)
def test_equal_records_and_only_those_have_equal_texts(
    one: EnrollmentRecord, two: EnrollmentRecord
) -> None:
    assert decode_record(encode_record(one)) == one
    assert (encode_record(one) == encode_record(two)) == (one == two)


def test_this_is_version_one() -> None:
    """A change here is another version: what is stored must be migrated."""
    assert VERSION == 1
    assert encode_record(EnrollmentRecord("n", denial=QuarantineEntry("C", "r", "a", 1))) == (
        '{"node":"n","node_uid":null,"spire_agent":null,"gpus":[],"instance":null,'
        '"superseded":[],"denial":{"code":"C","reason":"r","actor":"a","wall_ns":1,'
        '"candidate":null}}'
    )
    assert encode_record(EnrollmentRecord("n", lifted_ns=1)).endswith(
        ',"denial":null,"lifted_ns":1}'
    )
    assert encode_record(EnrollmentRecord("n", lifted_ns=1, lifted_by="ann")).endswith(
        ',"lifted_ns":1,"lifted_by":"ann"}'
    )
    assert encode_record(EnrollmentRecord("n", system_uuid="s")).endswith(
        ',"denial":null,"system_uuid":"s"}'
    )
    split = EnrolledGpu("GPU-1", mig_devices=("MIG-1",))
    assert '"complete":true,"mig_devices":["MIG-1"]}' in encode_record(
        EnrollmentRecord("n", gpus=(split,))
    )
    enrolled_gpu = EnrolledGpu("GPU-1")
    assert encode_record(EnrollmentRecord("n", gpus=(enrolled_gpu,))).count(
        '{"uuid":"GPU-1","serial":null,"identity_key":null,"pci_bus_id":null,'
        '"enrolled":false,"complete":true}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "{" * 2000,
        '{"node":1}',
        '{"node":"n"}',
        '{"node":"\\ud800"}',
        encode_record(EnrollmentRecord("n")) + " ",
        encode_record(EnrollmentRecord("n")).replace('"gpus":[]', '"gpus":[],"extra":1'),
        encode_record(EnrollmentRecord("n")).replace('"node":"n"', '"node":"m","node":"n"'),
    ],
)
def test_no_other_text_is_a_record(text: str) -> None:
    with pytest.raises(RecordInvalidError, match="version 1"):
        decode_record(text)
