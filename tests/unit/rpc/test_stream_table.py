from controller.rpc.attestation import AttestSession, StreamTable
from gpuwarden.reasons import ReasonCode, Refusal


class Stream(AttestSession):
    def __init__(self) -> None:
        self.ends: list[Refusal | None] = []

    def end(self, refusal: Refusal | None, /) -> None:
        self.ends.append(refusal)


def test_an_acceptance_ends_older_streams_of_its_node_and_no_others() -> None:
    table = StreamTable()
    old, accepted, newer, other = Stream(), Stream(), Stream(), Stream()
    for stream in (old, accepted, newer):
        table.add("a", stream)
    table.add("b", other)
    table.accepted("a", accepted)
    assert [end.code for end in old.ends if end] == [ReasonCode.STREAM_SUPERSEDED]
    assert accepted.ends == newer.ends == other.ends == []


def test_a_stream_that_is_gone_ends_nobody() -> None:
    table = StreamTable()
    old, gone = Stream(), Stream()
    table.add("a", old)
    table.accepted("a", gone)
    table.remove("a", gone)
    table.remove("b", gone)
    assert old.ends == []
    assert list(table) == [old]


def test_all_can_be_ended_in_an_orderly_way_and_leave() -> None:
    table = StreamTable()
    one, two = Stream(), Stream()
    table.add("a", one)
    table.add("b", two)
    table.end_all()
    assert one.ends == two.ends == [None]
    table.remove("a", one)
    table.remove("b", two)
    assert list(table) == []


def test_the_streams_of_one_node_can_be_ended_with_a_reason() -> None:
    table = StreamTable()
    one, two = Stream(), Stream()
    table.add("a", one)
    table.add("b", two)
    refusal = Refusal(ReasonCode.NODE_DENIED)
    table.end_node("a", refusal)
    table.end_node("c", refusal)
    assert (one.ends, two.ends) == ([refusal], [])
