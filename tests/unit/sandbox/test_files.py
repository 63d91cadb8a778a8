from pathlib import Path

import pytest

from sandbox import files


def test_a_checkout_has_its_own_files_and_builds_in_itself() -> None:
    assert files.data("examples/pod.yaml") == files.ROOT / "examples/pod.yaml"
    assert files.typed("examples/pod.yaml") == "examples/pod.yaml"
    assert files.programs() == "$PWD/.venv/bin"
    assert files.made({"XDG_CACHE_HOME": "/cache"}) == files.ROOT / "build"


def test_an_installation_has_copies_and_builds_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "IS_INSTALLED", True)
    copy = files.SHIPPED / "examples/pod.yaml"
    assert (files.data("examples/pod.yaml"), files.typed("examples/pod.yaml")) == (copy, str(copy))
    assert Path(files.programs()).is_absolute()
    assert files.made({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/gpuwarden-sandbox")
    assert files.made({}) == Path.home() / ".cache/gpuwarden-sandbox"
