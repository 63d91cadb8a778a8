"""Documents in a folder: whole, versioned, and named when they cannot be had."""

from pathlib import Path

import pytest

from controller.export.documents import (
    DocumentChangedError,
    DocumentsUnavailableError,
    FolderDocuments,
)


async def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = FolderDocuments(tmp_path / "export")
    assert await found.read("a") is None
    version = await found.write("a", "one", None)
    read = await found.read("a")
    assert read is not None
    assert (read.text, read.version) == ("one", version)
    assert await found.write("a", "two", version) != version
    assert [x.name for x in (tmp_path / "export").iterdir()] == ["a.json"]


async def test_nothing_is_written_over_what_somebody_else_wrote(tmp_path: Path) -> None:
    found = FolderDocuments(tmp_path)
    version = await found.write("a", "one", None)
    await found.write("a", "two", version)
    for old in (version, None):
        with pytest.raises(DocumentChangedError):
            await found.write("a", "three", old)
    read = await found.read("a")
    assert read is not None
    assert read.text == "two"


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = FolderDocuments(tmp_path / "file")
    with pytest.raises(DocumentsUnavailableError, match="Not a directory"):
        await found.read("a")
    (tmp_path / "a.json").mkdir()
    with pytest.raises(DocumentsUnavailableError, match="a folder"):
        await FolderDocuments(tmp_path).read("a")
