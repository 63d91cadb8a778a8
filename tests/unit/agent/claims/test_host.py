import os
from pathlib import Path

import pytest

from agent.claims.host import HostFacts, HostUnreadableError, read_host

BOOT = "0b3f6f1e-7f0c-4f6e-9d55-0c6ce6f6f0aa"
SYSTEM = "4C4C4544-0042-3510-8054-B4C04F4D5033"


def host(root: Path, boot: str | None = BOOT, system: str | None = SYSTEM) -> Path:
    for name, text in (
        ("proc/sys/kernel/random/boot_id", boot),
        ("sys/class/dmi/id/product_uuid", system),
    ):
        (root / name).parent.mkdir(parents=True)
        if text is not None:
            (root / name).write_text(f"{text}\n")
    return root


def test_facts_as_the_kernel_gives_them(tmp_path: Path) -> None:
    assert read_host(host(tmp_path)) == HostFacts(
        arch=os.uname().machine, boot_id=BOOT, system_uuid=SYSTEM.lower()
    )


@pytest.mark.parametrize(
    "system",
    [
        None,
        "",
        "To Be Filled By O.E.M.",
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        SYSTEM + "x" * 300,
    ],
)
def test_a_system_uuid_that_says_nothing_is_null(tmp_path: Path, system: str | None) -> None:
    assert read_host(host(tmp_path, system=system)).system_uuid is None


@pytest.mark.parametrize("boot", [None, "", "today"])
def test_there_is_no_evidence_without_a_boot_id(tmp_path: Path, boot: str | None) -> None:
    with pytest.raises(HostUnreadableError, match="boot_id"):
        read_host(host(tmp_path, boot=boot))


def test_this_machine_has_a_boot_id() -> None:
    assert read_host().boot_id
