"""The agent in its own requirement set, on three controllers: memory, threads, idle CPU."""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import yaml

from sandbox.laptop import API_VERSION, Pace
from sandbox.nodes import CLUSTER, TRUST_DOMAIN, simulated_nodes
from sandbox.nvml.build import build
from sandbox.nvml.scenario import VARIABLE, write
from tests.bench.child import ROOT, Child
from tests.bench.cluster import Cluster, Controller
from tests.bench.results import Bound, Goal, Row

GROUP = "Agent, connected to three controllers"
_REPLICAS = 3
_PACE = Pace(interval_s=25.0, challenge_ttl_s=15.0, lease_s=90.0)
_CONNECT_S = 40.0
_WATCH_S = 60.0
_INSTALL_S = 300


def agent_rows(folder: Path, cache: Path) -> list[Row]:
    """Rows about one agent with eight GPUs."""
    python = agent_python(cache)
    # Compiled before, as in an image: compiling would be measured as memory.
    subprocess.run([python, "-c", "import agent.app"], cwd=ROOT, check=True, timeout=60)
    cluster = Cluster(folder / "agent", _PACE)
    try:
        with ExitStack() as stack:
            replicas = [cluster.controller(stack, f"c{n}") for n in range(_REPLICAS)]
            agent = _agent(stack, cluster, python, replicas)
            _until_accepted(agent, replicas)
            time.sleep(2)
            memory, threads = agent.rss_mib(), _threads(agent.pid)
            begin = agent.cpu_s()
            time.sleep(_WATCH_S)
            share = 100 * (agent.cpu_s() - begin) / _WATCH_S
    finally:
        cluster.close()
    return [
        Row(
            GROUP,
            "resident memory",
            "MiB",
            memory,
            goal=Goal(Bound.AT_MOST, 75, of_ratio=False),
            note=f"{threads} threads. An environment with nothing but requirements/agent.txt.",
        ),
        Row(
            GROUP,
            "share of a core",
            "%",
            share,
            goal=Goal(Bound.AT_MOST, 0.1, of_ratio=False),
            note=f"Over {_WATCH_S:.0f} s with three streams, a challenge on each every 25 s."
            " The fake NVML's own time is in it.",
        ),
    ]


def agent_python(cache: Path) -> Path:
    """The interpreter of an environment with the agent's requirements alone."""
    wanted = (ROOT / "requirements" / "agent.txt").read_bytes()
    venv, stamp = cache / "agent-venv", cache / "agent-venv.txt"
    python = venv / "bin" / "python"
    if not stamp.exists() or stamp.read_bytes() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, timeout=120)
        requirements = ("--require-hashes", "-r", ROOT / "requirements" / "agent.txt")
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run((*pip, *requirements), check=True, timeout=_INSTALL_S)
        stamp.write_bytes(wanted)
    return python


def _agent(stack: ExitStack, cluster: Cluster, python: Path, replicas: list[Controller]) -> Child:
    node = simulated_nodes()[0]
    scenario, config = cluster.folder / "scenario", cluster.folder / "config" / "agent.yaml"
    write(scenario, node.scenario)
    document = {
        "apiVersion": API_VERSION,
        "kind": "AgentConfig",
        "trustDomain": TRUST_DOMAIN,
        "cluster": CLUSTER,
        "workloadApi": cluster.workload(node.name, f"agent/{node.name}"),
        "agent": {
            "nodeName": node.name,
            "controllers": [replica.agents for replica in replicas],
            "stateDir": str(cluster.folder / "state"),
            "kubeletSocket": "off",
        },
        "listen": {"ops": "127.0.0.1:0"},
    }
    config.write_text(yaml.safe_dump(document))
    child = Child(
        [python, "-m", "agent", "--config", config],
        environment={"LD_LIBRARY_PATH": str(build()), VARIABLE: str(scenario)},
        silent=True,
    )
    return stack.enter_context(child)


def _until_accepted(agent: Child, replicas: list[Controller]) -> None:
    end = time.monotonic() + _CONNECT_S
    while not all(replica.eligible() for replica in replicas):
        if agent.has_ended or time.monotonic() > end:
            raise RuntimeError(f"the agent was not accepted everywhere: {agent.fault()}")
        time.sleep(0.1)


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
