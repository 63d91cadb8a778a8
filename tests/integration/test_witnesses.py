"""Agents as witnesses, with real programs: a log that is rewritten, cut back or begun again."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from agent.state import FILE_NAME, AgentState, decode_state
from gpuwarden.audit.chain import Verified
from gpuwarden.audit.checkpoint import unverified_checkpoint
from gpuwarden.audit.files import log_files, verify_files
from sandbox.demo.stage import Stage
from sandbox.laptop import Laptop
from sandbox.nodes import AMPERE, simulated_nodes
from tests.builders.forked_log import fork
from tests.builders.log_trees import lines_in, notes_in, records_in
from tests.hang import HANG_S

NODE = next(x for x in simulated_nodes() if x.name == AMPERE)
WAIT_S = HANG_S
FORK_AT = 4


class Cluster:
    """One controller and one agent."""

    def __init__(self, folder: Path) -> None:
        self.laptop = Laptop(folder)
        self.stage = Stage(self.laptop)
        self.audit = self.laptop.audit_folder

    async def start(self) -> None:
        await self.laptop.start_controller((AMPERE,))
        await self.laptop.start_agent(NODE)
        await self.eligible()

    async def restart_controller(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        await self.laptop.stop_controller()
        meanwhile()
        await self.laptop.start_controller((AMPERE,))

    async def eligible(self) -> None:
        node = await self.stage.until(AMPERE, lambda x: x.state == "eligible", timeout_s=WAIT_S)
        assert node.state == "eligible"

    def kept(self) -> AgentState:
        return decode_state((self.laptop.folder / "state" / AMPERE / FILE_NAME).read_bytes())

    def seen(self) -> str:
        """The checkpoint that the agent keeps."""
        logs = self.kept().logs
        return logs[0].checkpoint if logs else ""

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110 -- polls another process
                await asyncio.sleep(0.05)

    async def witnessed(self) -> None:
        """The agent has seen the last checkpoint that the log carries."""
        await self.until(lambda: self.seen() == notes_in(self.audit)[-1][1])

    async def readyz(self) -> tuple[int, list[str]]:
        event = await self.laptop.programs[AMPERE].event("agent.listening", timeout_s=WAIT_S)
        url = f"http://{event['ops']}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, (await answer.json())["alarms"]

    async def metrics(self) -> str:
        url = f"http://{self.laptop.addresses.ops}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        await made.start()
        yield made
        await made.stage.close()
    finally:
        await made.laptop.close()


def codes(cluster: Cluster) -> list[str]:
    return [alarm.code for alarm in cluster.kept().log_alarms]


async def test_a_fork_of_the_same_size_is_caught_and_the_alarm_stays(cluster: Cluster) -> None:
    await cluster.restart_controller()
    await cluster.witnessed()
    assert codes(cluster) == []
    seen = cluster.seen()
    sizes: list[int] = []

    def rewrite() -> None:
        sizes.append(len(lines_in(cluster.audit)))
        fork(cluster.audit, at=FORK_AT)
        sizes.append(len(lines_in(cluster.audit)))

    await cluster.restart_controller(rewrite)

    assert sizes[0] == sizes[1]
    result = verify_files(log_files(cluster.audit)).result
    assert isinstance(result, Verified)  # nothing in the log itself shows it
    await cluster.until(lambda: codes(cluster) == ["CHECKPOINT_INCONSISTENT"])
    (alarm,) = cluster.kept().log_alarms
    assert alarm.known == seen
    assert unverified_checkpoint(alarm.seen).origin == unverified_checkpoint(seen).origin
    assert cluster.seen() == seen
    await cluster.eligible()
    await cluster.until(lambda: any(r["kind"] == "log.alarm" for r in records_in(cluster.audit)))
    record = next(r for r in records_in(cluster.audit) if r["kind"] == "log.alarm")
    assert (record["codes"], record["refs"]["node"]) == (["CHECKPOINT_INCONSISTENT"], AMPERE)
    told = 'gpuwarden_audit_witness_alarms{code="CHECKPOINT_INCONSISTENT"} 1.0'
    assert told in await cluster.metrics()
    status, alarms = await cluster.readyz()
    assert status == 200
    assert len(alarms) == 1

    await cluster.laptop.stop_agent(AMPERE)
    await cluster.laptop.start_agent(NODE)
    await cluster.eligible()
    _, again = await cluster.readyz()
    assert again == alarms
    assert again[0].startswith("CHECKPOINT_INCONSISTENT: ")

    state = cluster.laptop.folder / "state" / AMPERE / FILE_NAME
    state.unlink()
    await cluster.laptop.stop_agent(AMPERE)
    assert codes(cluster) == ["CHECKPOINT_INCONSISTENT"]  # written again when it ended
    state.unlink()
    await cluster.laptop.start_agent(NODE)
    await cluster.eligible()
    assert (await cluster.readyz())[1] == []


async def test_a_log_that_was_cut_back_is_caught(cluster: Cluster) -> None:
    await cluster.restart_controller()
    await cluster.witnessed()

    def cut() -> None:
        (path,) = log_files(cluster.audit)
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))

    await cluster.restart_controller(cut)
    await cluster.until(lambda: codes(cluster) == ["CHECKPOINT_INCONSISTENT"])


async def test_a_new_log_is_an_alarm_unless_it_names_the_old_one(cluster: Cluster) -> None:
    await cluster.restart_controller()
    await cluster.witnessed()

    def lose(*, name: bool) -> None:
        key, note = (cluster.audit / "log-key.pem").read_bytes(), cluster.seen()
        shutil.rmtree(cluster.audit)
        cluster.audit.mkdir()
        (cluster.audit / "log-key.pem").write_bytes(key)
        (cluster.audit / "log-key.pem").chmod(0o600)
        if name:
            (cluster.audit / "prev-log").write_text(note)

    await cluster.restart_controller(lambda: lose(name=True))
    await cluster.witnessed()
    assert codes(cluster) == []
    assert unverified_checkpoint(cluster.seen()).prev is not None

    await cluster.restart_controller(lambda: lose(name=False))
    await cluster.until(lambda: codes(cluster) == ["LOG_RESET"])
    await cluster.witnessed()
    await cluster.eligible()


async def test_what_the_log_says_is_proven_without_a_controller(cluster: Cluster) -> None:
    await cluster.laptop.stop_controller()
    accepted = next(r for r in records_in(cluster.audit) if r["kind"] == "evidence.accepted")
    digest, folder = accepted["refs"]["evidence"], str(cluster.audit)
    for command, said in (
        (("verify", folder), "Result:       verified"),
        (("prove", str(accepted["seq"]), folder), f"Record:      {accepted['seq']}\n"),
        (("consistency", "1", str(accepted["seq"]), folder), "hashes, verified"),
        (("reverify", digest, "--store", folder), "signature and chain were valid at that time"),
    ):
        status, output = await cluster.stage.cli("audit", *command)
        assert (status, said in output) == (0, True), output
