"""The commands of docs/inspect-grpc.md and of the demo, against a real controller with real TLS.

With grpcurl where it is built (`make e2e` does) or on PATH, and always with
a client that knows the services from their descriptions alone.
"""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from cryptography.hazmat.primitives.serialization import Encoding

from sandbox.demo.try_it import things_to_try
from sandbox.laptop import ROOT, Laptop
from sandbox.nodes import LEGACY, TRUST_DOMAIN, simulated_nodes
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.console_commands import typed
from tests.e2e.lab.build import shelf
from tests.e2e.lab.cache import cache_folder
from tests.e2e.lab.upstreams import GRPCURL, upstream
from tests.fakes import reflection_client
from tests.hang import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENTRIES = ROOT / "deploy" / "spire" / "clusterspiffeids.yaml"
SOCKET, ADDRESS, NODE = "unix:///run/gpuwarden/fleet.sock", "localhost:9443", "gpu-1"
"""What stands for a real socket, address and node on the page."""
QUARANTINE = "gpuwarden.wire.v1.OperatorService/QuarantineNode"
SERVICES = {
    "gpuwarden.wire.v1.AuditService",
    "gpuwarden.wire.v1.FleetService",
    "gpuwarden.wire.v1.OperatorService",
    "gpuwarden.wire.v1.PlacementService",
    "gpuwarden.wire.v1.SupportService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
}

Client = Callable[[Sequence[str]], tuple[int, str, str]]


def real_grpcurl() -> Path | None:
    """On PATH, or in the lab's cache."""
    built = shelf(upstream(GRPCURL), cache_folder()).folder / GRPCURL
    found = shutil.which(GRPCURL)
    return built if built.exists() else Path(found) if found else None


def _program(path: Path) -> Client:
    def run(arguments: Sequence[str]) -> tuple[int, str, str]:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=HANG_S, check=False
        )
        return done.returncode, done.stdout, done.stderr

    return run


_BUILT = real_grpcurl()
CLIENTS: dict[str, Client] = {
    "by description": reflection_client.grpcurl,
    **({GRPCURL: _program(_BUILT)} if _BUILT else {}),
}


def commands() -> Sequence[str]:
    """Every grpcurl command of the page."""
    return typed("docs/inspect-grpc.md", "grpcurl")


def shipped_names() -> tuple[str, ...]:
    """The DNS names in the shipped entry of the controller."""
    entries = yaml.safe_load_all(ENTRIES.read_text())
    [entry] = [x for x in entries if x["metadata"]["name"] == "gpuwarden-controller"]
    return tuple(entry["spec"]["dnsNameTemplates"])


@dataclass
class World:
    """A controller, an accepted node, and files with an SVID for each role."""

    laptop: Laptop
    folder: Path

    async def run(self, client: Client, command: str, role: str = "") -> tuple[int, str, str]:
        """Run a command of the page here, as someone of this role."""
        words = shlex.split(command)
        address = self.laptop.addresses.agents.replace("127.0.0.1", "localhost")
        here = {SOCKET: f"unix://{self.laptop.addresses.local}", ADDRESS: address}
        words = [here.get(word, word).replace(NODE, LEGACY) for word in words]
        files = {
            f"{name}.pem": str(self.folder / role / name) for name in ("svid", "key", "bundle")
        }
        return await asyncio.to_thread(client, [files.get(word, word) for word in words])


def _give(api: InsecureWorkloadApi, folder: Path, path: str) -> None:
    folder.mkdir()
    issued = api.ca.issue(f"spiffe://{TRUST_DOMAIN}/gpuwarden/{path}")
    (folder / "svid").write_bytes(issued.chain_pem)
    (folder / "key").write_bytes(issued.key_pem)
    bundle = b"".join(x.certificate.public_bytes(Encoding.PEM) for x in api.roots)
    (folder / "bundle").write_bytes(bundle)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="gw-") as name:
        folder = Path(name)
        laptop = Laptop(folder)
        laptop.name_controller(*shipped_names())
        for role in ("inspector", "operator", "agent"):
            _give(laptop.workload_api, folder / role, f"{role}/{LEGACY}")
        try:
            [node] = [node for node in simulated_nodes() if node.name == LEGACY]
            await laptop.start_controller((LEGACY,))
            await laptop.start_agent(node)
            yield World(laptop, folder)
        finally:
            await laptop.close()


async def test_the_page_shows_both_ways_in_and_every_role() -> None:
    found = commands()
    assert sum(SOCKET in command for command in found) == 2
    assert sum("-cacert bundle.pem" in command for command in found) == len(found) - 2
    assert sum(QUARANTINE in command for command in found) == 1
    assert len(found) >= 9


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_the_commands_of_the_page(world: World, client: Client) -> None:
    for command in commands():
        is_act = QUARANTINE in command
        for role in ("operator",) if is_act else ("inspector", "operator"):
            status, out, errors = await world.run(client, command, role)
            assert (status, errors) == (0, ""), (command, role)
            if command.endswith(" list"):
                own = {"gpuwarden.wire.v1.AttestationService"} if "-cacert" in command else set()
                assert set(out.split()) == SERVICES | own
            elif " describe " in command:
                assert "rpc ListNodes" in out
            elif command.endswith("ListNodes"):
                assert [node["name"] for node in json.loads(out)["nodes"]] == [LEGACY]
            elif command.endswith("GetNode"):
                assert json.loads(out)["node"]["name"] == LEGACY
            elif command.endswith("Records"):
                assert '"logs"' in out
            elif command.endswith("Check"):
                assert json.loads(out)["status"] in {"SERVING", "NOT_SERVING"}
            elif is_act:
                assert "RMA 4711" in out


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_who_may_not(world: World, client: Client) -> None:
    [act] = [command for command in commands() if QUARANTINE in command]
    listing, *_ = [x for x in commands() if "-cacert" in x and x.endswith(" list")]
    status, _, errors = await world.run(client, act, "inspector")
    assert status != 0
    assert "may not call" in errors
    status, _, errors = await world.run(client, listing, "agent")
    assert status != 0
    assert "may not call" in errors


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_the_name_is_checked(world: World, client: Client) -> None:
    listing, *_ = [x for x in commands() if "-cacert" in x and x.endswith(" list")]
    other = listing.replace("gpuwarden-controller.", "somebody-else.")
    assert other != listing
    status, out, _ = await world.run(client, other, "inspector")
    assert status != 0
    assert out == ""


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_the_line_that_the_demo_prints(world: World, client: Client) -> None:
    listed = things_to_try(world.laptop.addresses, world.folder).replace("\\\n", " ")
    [command] = re.findall(r"^ *grpcurl (.*)$", listed, re.MULTILINE)
    status, out, errors = await world.run(client, command)
    assert (status, errors) == (0, "")
    assert [node["name"] for node in json.loads(out)["nodes"]] == [LEGACY]
