"""What a person can try on a demo that stays up: the printed list. Tests run it as printed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox import files
from sandbox.demo.pods import EARLY, WAITING
from sandbox.laptop import Addresses
from sandbox.nodes import AMPERE, HOPPER, LEGACY

WORKLOADS: Final = ("statefulset", "deployment", "job", "reservation")
"""Of the folder `examples`, beside the pod."""


@dataclass(frozen=True, slots=True)
class Section:
    """Commands that belong together; one that ends with a backslash goes on in the next line."""

    title: str
    commands: tuple[str, ...]


def things_to_try(addresses: Addresses, folder: Path) -> str:
    """The list for the demo in this folder, as it is printed."""
    sections = _sections(addresses, folder)
    return "\n".join(
        f"{one.title}:\n" + "".join(f"  {line}\n" for line in one.commands) for one in sections
    )


def _sections(addresses: Addresses, folder: Path) -> tuple[Section, ...]:
    pod, filter_call = (files.typed(f"examples/{name}") for name in ("pod.yaml", "filter.json"))
    others = (files.typed(f"examples/{name}.yaml") for name in WORKLOADS)
    call = f"http://{addresses.extender}/filter"
    return (
        Section(
            "From another terminal" + ("" if files.IS_INSTALLED else ", in this folder"),
            (
                f'export PATH="{files.programs()}:$PATH"',
                f"export GPUWARDEN_SERVER=unix:{addresses.local}",
            ),
        ),
        *_console(addresses),
        Section(
            "Pods: what they hold, and why one waits",
            (
                "gpuwarden top --once",
                "gpuwarden reservations",
                "gpuwarden use",
                f"gpuwarden explain pod {EARLY}",
                f"gpuwarden why {WAITING}",
            ),
        ),
        Section(
            "The inventory as it is exported",
            (f"grep '\"change\":' {folder}/log/controller.log",),
        ),
        Section(
            "What the controller knows, and where a pod would pass",
            (
                "gpuwarden nodes",
                "gpuwarden gpus",
                f"gpuwarden explain node {HOPPER}",
                f"gpuwarden fit -f {pod}",
                *(f"gpuwarden fit -f {other}" for other in others),
            ),
        ),
        Section(
            "An operator quarantines a node and releases it",
            (
                f'gpuwarden node quarantine {HOPPER} --reason "a look at it" --yes',
                f"gpuwarden fit -f {pod}",
                f'gpuwarden node release {HOPPER} --reason "looked at" --yes',
            ),
        ),
        Section(
            "A GPU is swapped; putting the old one back is not enough",
            (
                f"gpuwarden-sandbox swap-gpu {LEGACY}",
                f"gpuwarden explain node {LEGACY}",
                f"gpuwarden-sandbox restore-gpu {LEGACY}",
                f'gpuwarden node release {LEGACY} --reason "old card is back" --yes',
            ),
        ),
        Section(
            "The SPIRE server bans a SPIRE agent: its node is out at once",
            (
                f"gpuwarden-sandbox ban {HOPPER}",
                f"gpuwarden explain node {HOPPER}",
                f"gpuwarden-sandbox unban {HOPPER}",
            ),
        ),
        Section(
            "An agent stops: its node is stale when its lease ends",
            (
                f"gpuwarden-sandbox stop-agent {AMPERE}",
                f"gpuwarden explain node {AMPERE}",
                f"gpuwarden-sandbox start-agent {AMPERE}",
            ),
        ),
        Section(
            "Evidence and the audit log are tampered with",
            (
                "gpuwarden-sandbox tamper-evidence",
                "gpuwarden-sandbox tamper-log",
                f"gpuwarden audit verify {folder}/audit",
            ),
        ),
        Section(
            "What probes, Prometheus, kube-scheduler and grpcurl see",
            (
                f"curl -s http://{addresses.ops}/readyz",
                f"curl -s http://{addresses.ops}/metrics",
                f"curl -s -H 'Content-Type: application/json' -d @{filter_call} \\",
                f"  {call}",
                f"grpcurl -plaintext unix://{addresses.local} \\",
                "  gpuwarden.wire.v1.FleetService/ListNodes",
            ),
        ),
    )


def _console(addresses: Addresses) -> tuple[Section, ...]:
    if not addresses.api:
        return ()
    port = addresses.api.rpartition(":")[2]
    url = f"https://localhost:{port}/"
    title = f"Open {url} in a browser; it warns, and reads"
    return (Section(title, (f"curl -sk {url}v1/fleet", f"curl -sk {url}v1/nodes/{HOPPER}")),)
