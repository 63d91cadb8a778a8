"""SPIFFE IDs are exact text; roles come from exact paths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.identity.spiffe_id import (
    PeerName,
    Role,
    SpiffeId,
    SpiffeIdError,
    agent_id,
    controller_id,
    is_node_name,
    parse_spiffe_id,
    parse_trust_domain,
    peer_name,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("spiffe://example.org", SpiffeId("example.org", "")),
        ("spiffe://example.org/a", SpiffeId("example.org", "/a")),
        ("spiffe://ex_1-2.org/A/b.c/..d", SpiffeId("ex_1-2.org", "/A/b.c/..d")),
    ],
)
def test_an_id_is_read_and_written_the_same(text: str, parsed: SpiffeId) -> None:
    assert parse_spiffe_id(text) == parsed
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "spiffe:",
        "spiffe://",
        "SPIFFE://example.org/a",
        "https://example.org/a",
        "spiffe://Example.org/a",
        "spiffe://example.org:443/a",
        "spiffe://user@example.org/a",
        "spiffe://example.org/",
        "spiffe://example.org/a/",
        "spiffe://example.org//a",
        "spiffe://example.org/./a",
        "spiffe://example.org/../a",
        "spiffe://example.org/%61",
        "spiffe://example.org/a?b",
        "spiffe://example.org/a#b",
        "spiffe://example.org/a b",
        "spiffe://example.org/ä",
        "spiffe://example.org/a\n",
        "spiffe://example.org/" + "a" * 2048,
        "spiffe://" + "a" * 256 + "/a",
    ],
)
def test_what_is_not_exactly_an_id_is_refused(text: str) -> None:
    with pytest.raises(SpiffeIdError):
        parse_spiffe_id(text)


@given(st.text(max_size=60).map(lambda tail: f"spiffe://example.org/{tail}"))
@settings(max_examples=200)
def test_whatever_is_accepted_is_written_back_as_it_came(text: str) -> None:
    try:
        parsed = parse_spiffe_id(text)
    except SpiffeIdError:
        return
    assert str(parsed) == text


def test_a_trust_domain_is_returned_unchanged() -> None:
    assert parse_trust_domain("prod.example.org") == "prod.example.org"


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("node-a", True),
        ("ip-10-0-0-1.ec2.internal", True),
        ("0", True),
        ("", False),
        ("Node", False),
        ("-a", False),
        ("a-", False),
        ("a..b", False),
        ("a" * 64, False),
        (".".join(["a" * 63] * 4), False),
    ],
)
def test_node_names_are_rfc_1123_subdomains(name: str, valid: bool) -> None:
    assert is_node_name(name) is valid


def test_a_node_name_has_at_most_253_characters() -> None:
    longest = ".".join(["a" * 62] * 4) + ".b"
    assert (len(longest), is_node_name(longest)) == (253, True)
    assert not is_node_name(longest + "b")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/gpuwarden/controller", PeerName(Role.CONTROLLER, "")),
        ("/gpuwarden/agent/n1", PeerName(Role.AGENT, "n1")),
        ("/gpuwarden/inspector/ann", PeerName(Role.INSPECTOR, "ann")),
        ("/gpuwarden/operator/bob", PeerName(Role.OPERATOR, "bob")),
        ("/gpuwarden/controller/x", None),
        ("/gpuwarden/agent", None),
        ("/gpuwarden/agent/n1/x", None),
        ("/gpuwarden/root/x", None),
        ("/gpuwardenx/agent/n1", None),
        ("/gpuwarder/agent/n1", None),
        ("/otherteam/controller", None),
        ("/agent/n1", None),
        ("", None),
    ],
)
def test_a_role_is_an_exact_path(path: str, expected: PeerName | None) -> None:
    assert peer_name(SpiffeId("example.org", path), "/gpuwarden") == expected


def test_our_own_ids_are_read_back_as_their_roles() -> None:
    agent = agent_id("example.org", "/gpuwarden", "n1")
    assert str(agent) == "spiffe://example.org/gpuwarden/agent/n1"
    assert peer_name(agent, "/gpuwarden") == PeerName(Role.AGENT, "n1")
    controller = controller_id("example.org", "/gpuwarden")
    assert peer_name(controller, "/gpuwarden") == PeerName(Role.CONTROLLER, "")


def test_an_id_has_at_most_2048_bytes() -> None:
    begin = "spiffe://example.org/"
    longest = begin + "a" * (2048 - len(begin))
    assert str(parse_spiffe_id(longest)) == longest
    with pytest.raises(SpiffeIdError, match="longer than 2048 bytes"):
        parse_spiffe_id(longest + "a")


def test_a_trust_domain_has_at_most_255_characters() -> None:
    assert parse_trust_domain("a" * 255) == "a" * 255
    with pytest.raises(SpiffeIdError, match="trust domain must match"):
        parse_trust_domain("a" * 256)


def test_text_that_is_no_unicode_is_no_id() -> None:
    with pytest.raises(SpiffeIdError, match="bad path segment"):
        parse_spiffe_id("spiffe://example.org/\ud800")
