"""The archive: a manifest that is true, bounded, of one owner, and never over something else."""

import io
import json
import os
import resource
import stat
import tarfile
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from gpuwarden.support import archive
from gpuwarden.support.archive import pack, write_new
from gpuwarden.support.part import Part, missing

NOW = datetime(2026, 11, 28, 3, 4, 5, tzinfo=UTC)
STEM = "gpuwarden-support-20261128T030405Z"


def files_of(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        members = tar.getmembers()
        assert all(member.isreg() and member.mode == 0o600 for member in members)
        read = {member.name: tar.extractfile(member) for member in members}
        return {name.removeprefix(f"{STEM}/"): file.read() for name, file in read.items() if file}


def test_the_manifest_says_what_is_there_and_what_is_not() -> None:
    bundle = pack(
        {
            "controller": [
                Part("a.json", b"{}\n", withheld=("detail",), left_out=3),
                missing("b.json", "OSError ENOSPC"),
            ],
            "local": [Part("a.json", b"[]\n")],
        },
        NOW,
    )
    assert bundle.name == f"{STEM}.tar.gz"
    assert bundle.gaps == (("controller/b.json", "OSError ENOSPC"),)
    files = files_of(bundle.data)
    manifest = json.loads(files.pop("manifest.json"))
    assert files == {"controller/a.json": b"{}\n", "local/a.json": b"[]\n"}
    assert manifest["files"] == [
        {"path": path, "bytes": len(content), "sha256": sha256(content).hexdigest()}
        for path, content in files.items()
    ]
    assert manifest["missing"] == [{"path": "controller/b.json", "why": "OSError ENOSPC"}]
    assert manifest["withheld"] == {"controller/a.json": ["detail"]}
    assert manifest["leftOut"] == {"controller/a.json": 3}
    assert manifest["madeAt"] == "2026-11-28T03:04:05Z"
    assert any("private keys" in one for one in manifest["never"])


def test_it_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 10)
    parts = [Part("a", b"x" * 8), Part("b", b"x" * 3), Part("c", b"xx")]
    bundle = pack({"local": parts}, NOW)
    assert set(files_of(bundle.data)) == {"manifest.json", "local/a", "local/c"}
    assert bundle.gaps == (("local/b", "no room left in the bundle"),)


def test_it_is_kept_for_its_owner(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        write_new(b"data", tmp_path / "bundle")
    finally:
        os.umask(old)
    assert (tmp_path / "bundle").read_bytes() == b"data"
    assert stat.S_IMODE((tmp_path / "bundle").stat().st_mode) == 0o600


def test_nothing_is_overwritten_not_even_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            write_new(b"data", tmp_path / name)
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_what_cannot_be_written_whole_does_not_stay(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_new(b"x" * 100, tmp_path / "bundle")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
