"""The CLI as a process, and over real TLS with SVIDs from files and from the Workload API."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpuwarden.cli.app import run
from sandbox.spiffe.workload import Fault
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.ca import SpiffeCa
from tests.builders.fleet_messages import node_message
from tests.fakes.fleet_server import FakeFleetServer, changes
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "spiffe://example.org/gpuwarden"
READER = f"{PREFIX}/inspector/alice"
CONTROLLER = f"{PREFIX}/controller"


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpuwarden.cli", *arguments]


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FakeFleetServer]:
    with FakeFleetServer().on_socket(tmp_path / "fleet.sock") as server:
        yield server


# --- as a process ---


def test_the_program_lists_nodes(fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message()]
    ran = subprocess.run(
        program("nodes", "-o", "name"),
        env={**environment(), "GPUWARDEN_SERVER": fleet.target},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "gpu-a1\n", "")


def test_the_program_reads_a_pod_from_standard_input(fleet: FakeFleetServer) -> None:
    fleet.fit.managed = True
    ran = subprocess.run(
        program("fit", "-f", "-", "--server", fleet.target, "-o", "json"),
        env=environment(),
        input=b"kind: Pod\n",
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    assert ran.returncode == 3
    assert json.loads(ran.stdout)["managed"] is True
    assert fleet.asked[0].pod_json == b'{"kind": "Pod"}'  # type: ignore[attr-defined] # it is the fit request


def test_a_reader_that_has_had_enough_is_no_error(fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message(f"node-{i}", detail="x" * 200) for i in range(2000)]
    with subprocess.Popen(
        program("nodes", "-o", "wide", "--server", fleet.target),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as ran:
        assert ran.stdout
        assert ran.stderr
        assert ran.stdout.readline().startswith(b"NAME")
        ran.stdout.close()
        assert ran.stderr.read() == b""
        assert ran.wait(HANG_S) == 0


def test_a_watch_ends_with_an_interrupt(fleet: FakeFleetServer) -> None:
    fleet.keeps_watches = True
    fleet.changes = changes([node_message()])
    with subprocess.Popen(
        program("nodes", "--watch", "--server", fleet.target),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as ran:
        assert ran.stdout
        assert ran.stderr
        assert ran.stdout.readline().startswith(b"TIME      NAME")
        assert b"  gpu-a1  " in ran.stdout.readline()
        ran.send_signal(signal.SIGINT)
        assert ran.wait(HANG_S) == 130
        assert ran.stderr.read() == b""


def test_a_local_question_loads_no_spiffe_library(fleet: FakeFleetServer) -> None:
    code = (
        "import sys; from gpuwarden.cli.app import run;"
        f"run(['nodes', '--server', '{fleet.target}']);"
        "sys.exit(1 if {'spiffe', 'structlog', 'opentelemetry'} & set(sys.modules) else 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=False
    )
    assert ran.returncode == 0


# --- over TLS ---


@dataclass
class World:
    """A controller over TLS, and files with an SVID for us."""

    server: FakeFleetServer
    ca: SpiffeCa
    folder: Path

    def files(
        self, ca: SpiffeCa, spiffe_id: str = READER, *, roots: SpiffeCa | None = None
    ) -> list[str]:
        key, chain = ca.issue(spiffe_id)
        paths = {name: self.folder / f"{name}.pem" for name in ("svid", "key", "bundle")}
        paths["svid"].write_bytes(b"".join(x.public_bytes(Encoding.PEM) for x in chain))
        paths["key"].touch(0o600)
        paths["key"].write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        bundle = {*ca.roots, *(roots or ca).roots}
        paths["bundle"].write_bytes(b"".join(x.public_bytes(Encoding.PEM) for x in bundle))
        return [part for name, path in paths.items() for part in (f"--{name}", str(path))]


Serve = Callable[..., World]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a controller with this identity that trusts `clients`."""
    started: list[FakeFleetServer] = []

    def start(
        identity: str = CONTROLLER, ca: SpiffeCa | None = None, *, clients: SpiffeCa | None = None
    ) -> World:
        ca = ca or SpiffeCa()
        key, chain = ca.issue(identity)
        server = FakeFleetServer().over_tls(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            b"".join(x.public_bytes(Encoding.PEM) for x in chain),
            (clients or ca).roots[0].public_bytes(Encoding.PEM),
        )
        server.nodes = [node_message()]
        started.append(server.__enter__())
        return World(server, ca, tmp_path)

    yield start
    for server in started:
        server.__exit__()


def test_nodes_over_tls_with_files(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    world = serve()
    arguments = ["nodes", "-o", "name", "--server", world.server.target, *world.files(world.ca)]
    assert run(arguments) == 0
    assert capsys.readouterr().out == "gpu-a1\n"


def test_another_workload_is_not_the_controller(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    world = serve(f"{PREFIX}/agent/gpu-a1")
    assert run(["nodes", "--server", world.server.target, *world.files(world.ca)]) == 5
    assert f"wrong-identity: server is {PREFIX}/agent/gpu-a1, expected {CONTROLLER}" in (
        capsys.readouterr().err
    )
    assert world.server.asked == []


def test_a_controller_of_an_unknown_authority(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    world = serve()
    assert run(["nodes", "--server", world.server.target, *world.files(SpiffeCa())]) == 5
    assert "untrusted: " in capsys.readouterr().err
    assert world.server.asked == []


def test_a_controller_that_does_not_trust_us(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    world = serve(clients=SpiffeCa())
    assert run(["nodes", "--server", world.server.target, *world.files(world.ca)]) == 4
    assert "refused: " in capsys.readouterr().err


def test_a_refusal_of_the_controller_comes_through_the_tunnel(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    world = serve()
    files = world.files(world.ca)
    assert run(["node", "show", "nope", "--server", world.server.target, *files]) == 1
    assert capsys.readouterr().err == "gpuwarden: no node 'nope'\n"


def test_nobody_listens(serve: Serve, own_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    world = serve()
    assert run(["nodes", "--server", f"127.0.0.1:{own_port}", *world.files(world.ca)]) == 5
    assert "unreachable: " in capsys.readouterr().err


# --- with the Workload API ---


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    api = InsecureWorkloadApi(tmp_path)
    try:
        yield api
    finally:
        api.close()


def test_the_reader_is_chosen_among_our_identities(
    workload_api: InsecureWorkloadApi, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = workload_api.add("cli", f"{PREFIX}/agent/gpu-a1", READER)
    issued = workload_api.ca.issue(CONTROLLER)
    roots = workload_api.roots[0].certificate.public_bytes(Encoding.PEM)
    with FakeFleetServer().over_tls(issued.key_pem, issued.chain_pem, roots) as server:
        server.nodes = [node_message()]
        arguments = ["nodes", "-o", "name", "--server", server.target]
        assert run([*arguments, "--workload-api", endpoint]) == 0
    assert capsys.readouterr().out == "gpu-a1\n"


def test_an_identity_that_may_not_read(
    workload_api: InsecureWorkloadApi, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = workload_api.add("cli", f"{PREFIX}/agent/gpu-a1")
    assert run(["nodes", "--server", "127.0.0.1:1", "--workload-api", endpoint]) == 4
    assert f"no inspector or operator, only {PREFIX}/agent/gpu-a1" in capsys.readouterr().err


def test_a_workload_api_that_knows_us_not(
    workload_api: InsecureWorkloadApi, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = workload_api.add("cli", READER)
    workload_api.fault("cli", Fault.DENIED)
    assert run(["nodes", "--server", "127.0.0.1:1", "--workload-api", endpoint]) == 4
    assert f"Workload API at {endpoint}: " in capsys.readouterr().err


def test_a_workload_api_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = f"unix://{tmp_path}/none.sock"
    assert run(["nodes", "--server", "127.0.0.1:1", "--workload-api", endpoint]) == 5
    assert f"Workload API at {endpoint}: " in capsys.readouterr().err
