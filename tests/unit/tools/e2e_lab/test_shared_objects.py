import os
import sys
from pathlib import Path

from tests.e2e.lab.shared_objects import shared_objects


def test_a_program_with_its_libraries_and_its_loader() -> None:
    program = Path(sys.executable).resolve()
    found = shared_objects(program)
    assert any("libc.so" in inside for inside in found)
    assert any("ld-" in inside for inside in found)
    for inside, path in found.items():
        assert inside.startswith("/")
        assert path.is_file()
        assert not path.is_symlink()


def test_what_is_no_dynamic_program_has_none(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{os.devnull}\n")
    assert shared_objects(script) == {}
