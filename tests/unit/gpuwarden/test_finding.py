"""Texts of findings, and the known name that is most like a wrong one."""

import pytest

# ruff: noqa: E501 -- one row per finding and its text
from gpuwarden.finding import Finding, near_miss, quoted, required, unknown

KNOWN = ("apiVersion", "minLevel", "defaultMode", "agents", "ops")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minLevl", "minLevel"),
        ("min_level", "minLevel"),
        ("MIN-LEVEL", "minLevel"),
        ("agnets", "agents"),
        ("opps", "ops"),
        ("mode", None),
        ("", None),
    ],
)
def test_the_known_name_that_is_most_like_it(name: str, expected: str | None) -> None:
    assert near_miss(name, KNOWN) == expected


def test_how_alike_names_must_be_can_be_set() -> None:
    assert near_miss("abcx", ["abcd"]) == "abcd"
    assert near_miss("abcx", ["abcd"], closeness=0.76) is None


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (Finding("k", "'v'", "a word"), "k: got 'v'; expected a word"),
        (Finding("k", "'v'", "a word", "file f, line 3"), "k (file f, line 3): got 'v'; expected a word"),
        (Finding("K", "1", "2", "environment", setting="a.k"), "K (environment, sets a.k): got 1; expected 2"),
        (Finding("--a.k", "1", "2", "flag", setting="a.k"), "--a.k (flag): got 1; expected 2"),
        (Finding("k", "", "a word"), "k: expected a word"),
        (required("k", "a word"), "k: is required; expected a word"),
        (unknown("k", "l", known="one of l, m"), "k: unknown key; did you mean l?"),
        (unknown("k", None, "file f", known="one of l, m"), "k (file f): unknown key; expected one of l, m"),
        (unknown("k", None, what="flag"), "k: unknown flag"),
    ],
)  # fmt: skip
def test_a_finding_says_what_is_wrong_where(finding: Finding, text: str) -> None:
    assert str(finding) == text


def test_a_quoted_text_is_short_and_has_no_password() -> None:
    assert quoted("https://me:secret@host/\n") == r"'https://<redacted>@host/\n'"
    assert quoted("x://me:a/b@c@host/d") == "'x://<redacted>@host/d'"
    assert quoted("x" * 121) == ascii("x" * 120 + "…")
    assert quoted("x" * 120) == f"'{'x' * 120}'"
