"""Commands for a demo that stays up: what a person lets happen to its nodes and its log.

`Control` serves a socket in the demo's folder, one JSON request and reply a connection, as
sandbox/spiffe/control.py does. `running_demo` finds the folder from another terminal.
"""

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from sandbox.demo.checks import flip_one_byte, tampered_verdict
from sandbox.demo.stage import Stage
from sandbox.laptop import spire_agent_path
from sandbox.nodes import with_another_card

PREFIX: Final = "gpuwarden-"
"""Beginning of a demo's folder, in the folder for temporary files."""
SOCKET: Final = "control.sock"
_MAX_REQUEST: Final = 4096
_SEEN_S: Final = 40.0
"""An agent that was refused comes back within 30 s."""
_ROUNDS_S: Final = 3.0


class NoDemoError(Exception):
    """No demo to ask, or not a single one; the text says what to do."""


class RefusedError(Exception):
    """What was asked cannot be done as things are."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it does, to a node or without one."""

    about: str
    run: Callable[[Stage, str], Awaitable[str]]
    takes_node: bool = True


class Control:
    """Serves the commands while it is entered."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        path = self._stage.laptop.folder / SOCKET
        self._server = await asyncio.start_unix_server(self._serve, path, limit=_MAX_REQUEST)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            line = await reader.readline()
            if not line:  # `running_demo` only wanted to know whether we are here
                return
            try:
                reply = {"ok": True, "result": await obey(self._stage, json.loads(line))}
            except Exception as error:  # noqa: BLE001 - the demo goes on, whoever asked is told
                reply = {"ok": False, "error": str(error) or type(error).__name__}
            with suppress(ConnectionError):
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()


async def obey(stage: Stage, request: Mapping[str, Any]) -> str:
    """Do what is asked; what to tell the person."""
    command = COMMANDS[request["do"]]
    return await command.run(stage, request.get("node", ""))


def running_demo(given: Path | None = None) -> Path:
    """The control socket of the demo that stays up, below `given` or the only one there is."""
    folders = [given] if given else _own_folders()
    running = [path for folder in folders if _answers(path := folder / SOCKET)]
    if not running:
        where = given or f"{tempfile.gettempdir()}/{PREFIX}*"
        raise NoDemoError(f"no demo stays up in {where}; start one with `make demo KEEP=1`")
    if len(running) > 1:
        names = ", ".join(str(path.parent) for path in running)
        raise NoDemoError(f"{len(running)} demos stay up; choose one with --demo: {names}")
    return running[0]


def _own_folders() -> list[Path]:
    found = sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    return [path for path in found if path.is_dir() and path.stat().st_uid == os.getuid()]


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True


# --- what can happen


async def _swap_gpu(stage: Stage, node: str) -> str:
    other = with_another_card(stage.nodes[node].scenario)
    stage.laptop.show(node, other)
    told = f"{node} shows another last GPU, {other.gpus[-1].uuid}"
    return await _seen(stage, node, "quarantined", told)


async def _restore_gpu(stage: Stage, node: str) -> str:
    stage.laptop.show(node, stage.nodes[node].scenario)
    digest = (await stage.node(node)).evidence_digest
    await stage.until(node, lambda x: x.evidence_digest != digest, timeout_s=_ROUNDS_S)
    return await _seen(stage, node, "", f"{node} shows its own GPUs again")


async def _stop_agent(stage: Stage, node: str) -> str:
    if node not in stage.laptop.programs:
        raise RefusedError(f"the agent of {node} does not run")
    await stage.laptop.stop_agent(node)
    return await _seen(stage, node, "stale", f"the agent of {node} has ended, and its lease too")


async def _start_agent(stage: Stage, node: str) -> str:
    if node in stage.laptop.programs:
        raise RefusedError(f"the agent of {node} runs")
    await stage.laptop.start_agent_again(node)
    return await _seen(stage, node, "eligible", f"the agent of {node} has started")


async def _ban(stage: Stage, node: str) -> str:
    stage.spire.ban(spire_agent_path(node))
    return await _seen(stage, node, "revoked", f"the SPIRE server bans the SPIRE agent of {node}")


async def _unban(stage: Stage, node: str) -> str:
    stage.spire.attest_again(spire_agent_path(node))
    return await _seen(stage, node, "eligible", f"the SPIRE agent of {node} attested again")


async def _seen(stage: Stage, node: str, state: str, told: str) -> str:
    """`told`, and what the controller makes of it: `state` normally."""
    found = await stage.until(node, lambda x: state in ("", x.state), timeout_s=_SEEN_S)
    code = f" ({found.code})" if found.code else ""
    return f"{told}; the controller says: {found.state}{code}"


async def _tamper_evidence(stage: Stage, _: str) -> str:
    verdict = await tampered_verdict(stage)
    return f"evidence with one flipped bit was sent; the verdict: {verdict.code}"


async def _tamper_log(stage: Stage, _: str) -> str:
    seq = flip_one_byte(stage.audit_folder)
    return f"one byte of record {seq} is changed in {stage.audit_folder}"


COMMANDS: Final[Mapping[str, Command]] = {
    "swap-gpu": Command("let a node show another GPU in the place of its last one", _swap_gpu),
    "restore-gpu": Command("let a node show its own GPUs again", _restore_gpu),
    "ban": Command("ban the SPIRE agent of a node, at the SPIRE server", _ban),
    "unban": Command("let the SPIRE agent of a node attest again, which lifts the ban", _unban),
    "stop-agent": Command("end the agent of a node", _stop_agent),
    "start-agent": Command("start the agent of a node again", _start_agent),
    "tamper-evidence": Command(
        "send evidence with one flipped bit", _tamper_evidence, takes_node=False
    ),
    "tamper-log": Command(
        "change one byte of the controller's audit log", _tamper_log, takes_node=False
    ),
}
