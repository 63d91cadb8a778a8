import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.settings.values import (
    Address,
    Duration,
    PriorityBucket,
    format_quantity,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("25s", 25 * 10**9),
        ("1m30s", 90 * 10**9),
        ("90d", 90 * 24 * 3600 * 10**9),
        ("1h", 3600 * 10**9),
        ("250ms", 250 * 10**6),
        ("5m", 300 * 10**9),
        ("0s", 0),
    ],
)
def test_duration_is_read(text: str, ns: int) -> None:
    assert Duration.parse(text).ns == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "25",
        "s",
        "-5s",
        "1.5s",
        "30s1m",
        "1 s",
        "1S",
        "\N{ARABIC-INDIC DIGIT ONE}s",
        "9" * 10 + "s",
    ],
)
def test_bad_duration_says_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="a duration"):
        Duration.parse(text)


@given(st.integers(0, 10**6))
def test_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    duration = Duration(milliseconds * 10**6)

    assert Duration.parse(str(duration)) == duration


def test_duration_in_seconds_is_for_timers() -> None:
    assert Duration.parse("1m500ms").seconds == 60.5


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("20000", 20000), ("256Ki", 262144), ("1Gi", 1 << 30), ("2k", 2000)],
)
def test_quantity_is_read(text: str, value: int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5Mi", "1MB", "Mi", "1 Mi", "\N{ARABIC-INDIC DIGIT THREE}", "1" * 17]
)
def test_bad_quantity_says_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_quantity(text)


@given(st.integers(0, 1 << 40))
def test_quantity_is_written_as_it_is_read(value: int) -> None:
    assert parse_quantity(format_quantity(value)) == value


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8080", Address("", 8080)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:9", Address("::1", 9)),
        ("gpuwarden-controller.ns.svc:9443", Address("gpuwarden-controller.ns.svc", 9443)),
    ],
)
def test_address_is_read_and_written_the_same(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        "host",
        "host:",
        "host:65536",
        "host:-1",
        "::1:9",
        "[::1:9",
        "[zz]:9",
        "a b:1",
        "-a:1",
        "a:\N{ARABIC-INDIC DIGIT ONE}",
        "a/b:1",
    ],
)
def test_bad_address_says_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),  # noqa: S104 -- an address to judge, not to bind
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, *, loopback: bool) -> None:
    assert Address(host, 1).is_loopback is loopback


@pytest.mark.parametrize(
    ("text", "bucket"),
    [
        ("90=gpu-ultra", PriorityBucket(90.0, "gpu-ultra")),
        ("0=a", PriorityBucket(0.0, "a")),
        ("100=a.b", PriorityBucket(100.0, "a.b")),
        ("62.5=gpu", PriorityBucket(62.5, "gpu")),
    ],
)
def test_bucket_is_read_and_written_the_same(text: str, bucket: PriorityBucket) -> None:
    assert PriorityBucket.parse(text) == bucket
    assert str(bucket) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "90",
        "90=",
        "=a",
        "101=a",
        "100.001=a",
        "-1=a",
        "nan=a",
        "90=A",
        "90=system-node-critical",
    ],
)
def test_bad_bucket_says_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a score from 0 to 100, '=' and a priority class"):
        PriorityBucket.parse(text)
