"""Leaves in files of their own, for nobody else's eyes."""

from pathlib import Path

import pytest

from controller.certificates.files import CertificateFiles
from controller.certificates.material import leaf_entries
from tests.builders.managed_certificates import authorities, leaf


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_are_written_once_for_each_leaf_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "certificates"
    files, held = CertificateFiles(folder), authorities()
    first, second = leaf("api", held), leaf("api", held)
    assert not files.has("api")
    assert files.write("api", first)
    assert files.has("api")
    assert not files.has("extender")
    assert not files.write("api", first)
    assert files.write("api", second)
    assert {x.name: x.read_bytes() for x in (folder / "api").iterdir()} == leaf_entries(second)
    assert {mode(x) for x in (folder / "api").iterdir()} == {0o600}
    assert (mode(folder), mode(folder / "api")) == (0o700, 0o700)


def test_what_a_crash_left_is_written_again(tmp_path: Path) -> None:
    made = leaf("api", authorities())
    CertificateFiles(tmp_path).write("api", made)
    (tmp_path / "api" / "tls.key").write_bytes(b"half")
    (tmp_path / "api" / ".tls.crt.new").write_bytes(b"half")
    assert CertificateFiles(tmp_path).write("api", made)
    assert {x.name: x.read_bytes() for x in (tmp_path / "api").iterdir()} == leaf_entries(made)


def test_a_folder_that_cannot_be_written_is_an_error_and_not_known_as_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "api").write_text("in the way")
    files = CertificateFiles(tmp_path)
    with pytest.raises(OSError, match="api"):
        files.write("api", leaf("api", authorities()))
    assert not files.has("api")
