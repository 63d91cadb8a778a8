"""docs/export.md says what the code does: fields, columns, statements, defaults."""

import re
from pathlib import Path

from controller.export.backlog import SHARDS
from controller.export.postgres import _COLUMNS, migrations
from controller.export.records import COLUMNS
from controller.kube.api.resources import EXPORT_DOCUMENTS, EXPORT_SHARDS

PAGE = (Path(__file__).resolve().parents[4] / "docs/export.md").read_text()


def test_the_table_has_each_field_with_its_column() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert [field for field, _ in rows] == list(COLUMNS)
    assert {(column, field) for field, column in rows} == set(_COLUMNS)


def test_the_statements_are_those_that_are_run() -> None:
    (shown,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert shown == "".join(f"{x.as_string(None)};\n" for x in migrations("gpu"))


def test_documents_are_those_that_the_rights_name() -> None:
    assert SHARDS == EXPORT_SHARDS
    assert len(EXPORT_DOCUMENTS) == 1 + 4 * SHARDS
    assert f"`gpuwarden-export-NAME-0` to `-{SHARDS - 1}`" in PAGE
