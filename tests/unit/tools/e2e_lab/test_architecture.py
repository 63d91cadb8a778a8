import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.deploy.wheels import MACHINES as WHEELS
from tests.e2e.lab import architecture
from tests.e2e.lab.architecture import ArchitectureError
from tests.e2e.lab.machine import NEEDS, runs

REGISTERED = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: POF
offset 0
magic 7f454c460201010000000000000000000200b700
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=request.param))


@pytest.mark.parametrize(
    ("machine", "own"), [("x86_64", "amd64"), ("aarch64", "arm64")], indirect=["machine"]
)
@pytest.mark.usefixtures("machine")
def test_an_image_is_for_this_machine_unless_somebody_says(own: str) -> None:
    assert architecture.this_machines() == own


@pytest.mark.parametrize("machine", ["riscv64"], indirect=True)
@pytest.mark.usefixtures("machine")
def test_on_a_machine_without_images_it_says_which_there_are() -> None:
    with pytest.raises(ArchitectureError, match=r"this machine is riscv64: .* amd64 and arm64"):
        architecture.this_machines()


def test_images_are_for_the_machines_that_wheels_are_locked_for() -> None:
    assert tuple(architecture.MACHINES.values()) == WHEELS
    assert {f"qemu-{name}" for name in WHEELS} <= NEEDS.keys()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (REGISTERED, True),
        (REGISTERED.replace("enabled", "disabled"), False),
        (REGISTERED.replace("POF", "PO"), False),
        (REGISTERED.replace("POF", ""), False),
    ],
)
def test_emulation_is_there_where_the_kernel_opened_qemu_beforehand(
    tmp_path: Path, text: str, *, found: bool
) -> None:
    """Without `F` it looks for qemu in the image, which has none."""
    (tmp_path / "qemu-aarch64").write_text(text)
    assert runs("aarch64", tmp_path) is found
    assert not runs("x86_64", tmp_path)
