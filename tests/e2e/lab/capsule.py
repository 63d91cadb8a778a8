"""The real node's namespaces: processes, mounts, host name and network of their own.

Everything ends with the first process in there: programs, shims and containers, mounts, and the
link to this machine. Cgroups are this machine's own and are seen through the inherited /sys.
"""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.sweep import MARK
from tests.e2e.lab.waiting import until

_IP, _MOUNT = "ip", "mount"
RUN_S = 30.0
PRIVATE = ("/var/lib/kubelet", "/var/lib/containerd", "/var/log/pods")
"""Folders of the node that lie in the lab's folder; all else below /run, /var/lib and /var/log is
gone with the node."""


class CapsuleError(RuntimeError):
    """The namespaces could not be made; says which command failed and why."""


class Capsule:
    """A place to start the programs of one node."""

    def __init__(self, folder: Path, plan: AddressPlan, host_name: str) -> None:
        self._plan = plan
        self.address = str(plan.inside)
        self._holder = _hold(folder)
        self.init = _child_of(self._holder.pid)
        try:
            self._furnish(folder, host_name)
            self._connect()
        except BaseException:
            self.close()
            raise

    def port(self, usual: int) -> int:
        """The usual one: nobody else is in this network."""
        return usual

    def command(self, arguments: Sequence[str], folder: Path = Path("/")) -> list[str]:
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        return ["nsenter", f"--target={self.init}", *spaces, "--", *_in(folder), *arguments]

    def pid(self, started: subprocess.Popen[bytes]) -> int:
        """nsenter waits for the program; the program is its child."""
        return _child_of(started.pid)

    def path(self, inside: str) -> Path:
        """A file of the node, seen from here."""
        return Path(f"/proc/{self.init}/root{inside}")

    def run(self, *arguments: str, timeout_s: float = RUN_S) -> str:
        """Run a command in there to its end; its standard output."""
        return _run(*self.command(arguments), timeout_s=timeout_s)

    def close(self) -> None:
        """End every process in there."""
        os.kill(self.init, signal.SIGKILL)
        self._holder.wait()

    def _furnish(self, folder: Path, host_name: str) -> None:
        self.run("hostname", host_name)
        self.run(_MOUNT, "--make-rshared", "/")
        for above in ("/run", "/var/lib", "/var/log"):
            self.run(_MOUNT, "-t", "tmpfs", "-o", "mode=0755", "tmpfs", above)
        for inside in PRIVATE:
            outside = folder / "node" / inside.removeprefix("/").replace("/", "-")
            outside.mkdir(parents=True)
            self.run("mkdir", "-p", inside)
            self.run(_MOUNT, "--bind", str(outside), inside)

    def _connect(self) -> None:
        plan, prefix = self._plan, self._plan.link_network.prefixlen
        peer = ("type", "veth", "peer", "name", "eth0", "netns", str(self.init))
        _run(_IP, "link", "add", plan.link, *peer)
        _run(_IP, "address", "add", f"{plan.outside}/{prefix}", "dev", plan.link)
        _run(_IP, "link", "set", plan.link, "up")
        self.run(_IP, "address", "add", f"{plan.inside}/{prefix}", "dev", "eth0")
        for device in ("lo", "eth0"):
            self.run(_IP, "link", "set", device, "up")
        self.run(_IP, "route", "add", "default", "via", str(plan.outside))
        self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for network in (plan.pods, plan.services):
            _run(_IP, "route", "add", str(network), "via", str(plan.inside))


def check_network(plan: AddressPlan) -> None:
    """CapsuleError where this machine has a network that the lab's would hide."""
    routes = json.loads(_run(_IP, "-json", "-4", "route", "show"))
    networks = [IPv4Network(route["dst"]) for route in routes if route["dst"] != "default"]
    if conflicts := plan.conflicts(networks):
        raise CapsuleError(f"this machine's network {conflicts[0]} is one of the lab's")


def _hold(folder: Path) -> subprocess.Popen[bytes]:
    """A process that holds the namespaces; its child is their first process and reaps orphans."""
    spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc")
    return subprocess.Popen(
        ["unshare", *spaces, "--kill-child", "env", "--ignore-signal=CHLD", "sleep", "infinity"],  # noqa: S607 - its place differs
        env={"PATH": os.environ["PATH"], MARK: str(folder)},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _in(folder: Path) -> tuple[str, str]:
    """nsenter leaves the working directory at the root."""
    return ("env", f"--chdir={folder}")


def _child_of(parent: int) -> int:
    return until(f"process {parent} has a child", lambda: _find_child(parent), timeout_s=10)


def _find_child(parent: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _parent(entry) == parent:
            return int(entry.name)
    return None


def _parent(process: Path) -> int:
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _run(*arguments: str, timeout_s: float = RUN_S) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise CapsuleError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
