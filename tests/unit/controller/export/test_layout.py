"""Keys and contents of objects."""

import pytest

from controller.export.layout import Format, ObjectLayout
from tests.builders.exported import records

BATCH = "20261129-114501.123-0f3a9c"
TIME = "2025-01-02T03:04:05.678Z"


@pytest.mark.parametrize(
    ("layout", "key"),
    [
        (ObjectLayout(), f"year=2026/month=11/day=29/hour=11/{BATCH}.csv"),
        (
            ObjectLayout("/fleet/a/", format=Format.NDJSON),
            f"fleet/a/year=2026/month=11/day=29/hour=11/{BATCH}.ndjson",
        ),
        (ObjectLayout("p", ""), f"p/{BATCH}.csv"),
        (ObjectLayout("", ""), f"{BATCH}.csv"),
        (ObjectLayout("", "/dt=%Y%m%d/"), f"dt=20261129/{BATCH}.csv"),
    ],
)
def test_key(layout: ObjectLayout, key: str) -> None:
    assert layout.key(BATCH, TIME) == key


def test_a_replayed_batch_lies_where_its_first_record_belongs() -> None:
    found = ObjectLayout().key("replay-0f3a", TIME)
    assert found == "year=2025/month=01/day=02/hour=03/replay-0f3a.csv"


@pytest.mark.parametrize("form", list(Format))
def test_contents_can_be_read_again(form: Format) -> None:
    wanted = records(3)
    assert form.read(form.content(wanted)) == wanted


def test_each_format_says_what_it_is() -> None:
    assert [x.content_type for x in Format] == ["text/csv", "application/x-ndjson"]


def test_a_check_lists_below_the_prefix() -> None:
    assert ObjectLayout("/a/b/").check_prefix == "a/b"
    assert ObjectLayout("").check_prefix is None
