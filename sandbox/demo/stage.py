"""What the demo's checks share: the running laptop cluster, ways to ask it, and what a check is.

It asks and acts. A check decides what the answer must be.
"""

import asyncio
import http.client
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from gpuwarden.wire.error_metadata import REASON_KEY
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1.fleet_pb2_grpc import FleetServiceStub
from gpuwarden.wire.v1.operator_pb2_grpc import OperatorServiceStub
from sandbox.laptop import Laptop
from sandbox.nodes import simulated_nodes
from sandbox.spiffe.spire_server import InsecureSpireServer

if TYPE_CHECKING:  # exists in the stub file only
    from gpuwarden.wire.v1.fleet_pb2_grpc import FleetServiceAsyncStub
    from gpuwarden.wire.v1.operator_pb2_grpc import OperatorServiceAsyncStub

_CALL_S = 5.0
_PROGRAM_S = 30.0
_POLL_S = 0.1
GHOST = "ghost-0"
"""A name that the scheduler sends and nobody attests."""
ANNOTATION = "gpuwarden.dev/required-hash"


class Stage:
    """The cluster with a gRPC client on its unix socket."""

    def __init__(self, laptop: Laptop) -> None:
        self.laptop = laptop
        self.nodes = {node.name: node for node in simulated_nodes()}
        self._channel = grpc.aio.insecure_channel(laptop.server)
        self._fleet: FleetServiceAsyncStub = FleetServiceStub(self._channel)
        self._operator: OperatorServiceAsyncStub = OperatorServiceStub(self._channel)

    async def close(self) -> None:
        """Close the client."""
        await self._channel.close()

    @property
    def spire(self) -> InsecureSpireServer:
        """The SPIRE server that confirms the nodes."""
        assert self.laptop.spire is not None, "the demo's nodes are confirmed"  # noqa: S101 - narrows
        return self.laptop.spire

    async def node(self, name: str) -> pb.Node:
        """One node with its GPUs."""
        return (await self._fleet.GetNode(pb.GetNodeRequest(name=name), timeout=_CALL_S)).node

    async def enrollment(self, name: str) -> pb.Enrollment:
        """Pins, denial and candidate of a node."""
        answer = await self._fleet.GetNode(pb.GetNodeRequest(name=name), timeout=_CALL_S)
        return answer.enrollment

    async def release(self, name: str, reason: str, version: str) -> str:
        """Release a node by a version of its enrolment; the reason code where it is refused."""
        request = ops.ReleaseNodeRequest(name=name, reason=reason, expected_version=version)
        try:
            await self._operator.ReleaseNode(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            found = dict(error.trailing_metadata() or ()).get(REASON_KEY, error.code().name)
            return str(found)
        return ""

    def records(self) -> list[dict[str, Any]]:
        """The controller's audit log so far."""
        files = sorted(self.audit_folder.glob("*.jsonl"))
        lines = (line for file in files for line in file.read_bytes().splitlines())
        return [json.loads(line) for line in lines]

    async def listed(self) -> dict[str, pb.Node]:
        """All nodes by name."""
        answer = await self._fleet.ListNodes(pb.ListNodesRequest(), timeout=_CALL_S)
        return {node.name: node for node in answer.nodes}

    async def not_ready(self) -> str:
        """Why the controller does not decide yet; empty once it does."""
        return (await self._fleet.ListNodes(pb.ListNodesRequest(), timeout=_CALL_S)).not_ready

    async def document(self, attestation_hash: str) -> bytes:
        """The class document behind a hash."""
        answer = await self._fleet.GetClass(
            pb.GetClassRequest(class_ref=attestation_hash), timeout=_CALL_S
        )
        return answer.attestation_class.document.encode()

    def watch(self) -> grpc.aio.UnaryStreamCall[pb.WatchNodesRequest, pb.WatchNodesResponse]:
        """The stream of node changes."""
        return self._fleet.WatchNodes(pb.WatchNodesRequest())

    async def until(
        self, name: str, holds: Callable[[pb.Node], bool], *, timeout_s: float = 10.0
    ) -> pb.Node:
        """The node as soon as `holds` is true for it, else as it is when the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds(node := await self._known(name)):  # noqa: ASYNC110 - polls another process
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return await self._known(name)
        return node

    async def _known(self, name: str) -> pb.Node:
        return (await self.listed()).get(name, pb.Node(name=name, state="unknown"))

    async def post(self, verb: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        """Ask the extender as kube-scheduler does; the answer must be HTTP 200."""
        return await asyncio.to_thread(self._post, verb, json.dumps(body).encode())

    def _post(self, verb: str, body: bytes) -> Any:  # noqa: ANN401 - any JSON
        connection = http.client.HTTPConnection(self.laptop.addresses.extender, timeout=_CALL_S)
        try:
            connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise RuntimeError(f"{verb} answered {answer.status}: {text[:200]!r}")
            return json.loads(text)
        finally:
            connection.close()

    async def filter(self, pod: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Nodes that pass for `pod`, and the reason of each that does not."""
        answer = await self.post("filter", self.arguments(pod))
        if answer["Error"]:
            raise RuntimeError(f"filter answered with an error: {answer['Error']}")
        return answer["NodeNames"], answer["FailedAndUnresolvableNodes"]

    def arguments(self, pod: dict[str, Any]) -> dict[str, Any]:
        """ExtenderArgs for `pod` and every node, one unknown among them."""
        return {"Pod": pod, "Nodes": None, "NodeNames": [*self.nodes, GHOST]}

    async def cli(self, *arguments: str) -> tuple[int, str]:
        """Run `gpuwarden`; exit status and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *self.cli_command(*arguments),
            env=self.laptop.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_PROGRAM_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output.decode()

    def cli_command(self, *arguments: str) -> Sequence[str]:
        """The command line of `gpuwarden` with this cluster's socket where it needs one."""
        return (sys.executable, "-m", "gpuwarden.cli", *arguments)

    @property
    def audit_folder(self) -> Path:
        """Where the controller writes its log."""
        return self.laptop.audit_folder


def pod(annotations: dict[str, str] | None = None, *, gpus: int = 0) -> dict[str, Any]:
    """A pod as kube-scheduler sends it."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {
            "name": "demo",
            "namespace": "default",
            "uid": "5b1f6a3e-1111-4c6e-9d0e-000000000001",
            "annotations": annotations or {},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


class CheckFailedError(Exception):
    """The product did not do what the step claims."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and the steps that show it; `run` returns what was seen, in one line."""

    name: str
    claim: str
    run: Callable[[Stage], Awaitable[str]]


def demand(holds: object, message: str) -> None:
    """Raise CheckFailedError with `message` unless `holds`."""
    if not holds:
        raise CheckFailedError(message)
