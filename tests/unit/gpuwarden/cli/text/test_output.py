"""JSON and YAML of messages: embedded documents are opened, anything else stays as it was."""

import pytest

from gpuwarden.cli.text.output import Format, json_line, plain, structured
from gpuwarden.wire.v1 import fleet_pb2 as pb


@pytest.mark.parametrize(
    ("document", "opened"),
    [('{"a":[1]}', {"a": [1]}), ("", None), ("{", "{"), ("[" * 100_000, "[" * 100_000)],
)
def test_documents_are_opened_where_they_are_json(document: str, opened: object) -> None:
    found = plain(pb.ListClassesResponse(classes=[pb.Class(document=document)]))
    assert found["classes"][0]["document"] == opened


def test_control_characters_are_escaped_in_every_format() -> None:
    value = {"a": "\x1b\x7f\x9b\u202e\n"}
    texts = [structured(value, Format.JSON), structured(value, Format.YAML), json_line(value)]
    assert all(text.isascii() and text.replace("\n", "").isprintable() for text in texts)
