"""Composition root: one cluster, from nothing to ready and back to nothing.

`Lab.control_plane_only()` needs no root; `Lab.whole()` has a real node. A lab is a context
manager; however its process ends, its keeper or the next lab removes what it leaves.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.lab import cgroups, logs
from tests.e2e.lab.api import Api
from tests.e2e.lab.build import built
from tests.e2e.lab.capsule import Capsule, check_network
from tests.e2e.lab.claim import Claim
from tests.e2e.lab.control_plane import ControlPlane
from tests.e2e.lab.fake_nodes import FakeNodes
from tests.e2e.lab.identities import Identities
from tests.e2e.lab.node import NAME, Node
from tests.e2e.lab.place import Loopback
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.program import Site
from tests.e2e.lab.selection import needed, why_no_node
from tests.e2e.lab.sweep import mark_node


class Lab:
    """A running cluster."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        *,
        has_node: bool,
        api_server_extra: Sequence[str] = (),
    ) -> None:
        """Take a number and lay everything out; nothing but the capsule is started yet."""
        self._claim = Claim.take()
        self._capsule: Capsule | None = None
        self._node: Node | None = None
        self._fake_nodes: FakeNodes | None = None
        self._beside: list[Site] = []
        self.plan = self._claim.plan
        self.folder = self._claim.folder
        self.ready_s = 0.0
        """How long `start` took."""
        try:
            self._lay_out(programs, has_node=has_node, api_server_extra=api_server_extra)
        except BaseException:
            self._give_back()
            raise

    @classmethod
    def control_plane_only(cls, *, api_server_extra: Sequence[str] = ()) -> "Lab":
        """etcd, API server, scheduler and controller manager on loopback, not started yet."""
        programs = built(needed(has_node=False))
        return cls(programs, has_node=False, api_server_extra=api_server_extra)

    @classmethod
    def whole(cls, *, api_server_extra: Sequence[str] = ()) -> "Lab":
        """The control plane and a real node, not started yet."""
        if reasons := why_no_node():
            raise RuntimeError(f"no node can run here: {'; '.join(reasons)}")
        programs = built(needed(has_node=True))
        return cls(programs, has_node=True, api_server_extra=api_server_extra)

    @property
    def api(self) -> Api:
        """The API as the administrator."""
        return self.control_plane.api

    @property
    def pods(self) -> Namespace:
        """The pods of namespace `default`."""
        return Namespace(self.api)

    @property
    def node(self) -> Node:
        """The real node."""
        if self._node is None:
            raise RuntimeError("this lab has no real node")
        return self._node

    @property
    def fake_nodes(self) -> FakeNodes:
        """Nodes that nobody runs."""
        if self._fake_nodes is None:
            raise RuntimeError("this lab is not started")
        return self._fake_nodes

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.control_plane.identities.admin_kubeconfig

    def beside(self, name: str, programs: Mapping[str, Path] | None = None) -> Site:
        """For programs that run on this machine's loopback and reach the cluster from there.

        `programs`: more than the lab's own.
        """
        found = {**self.site.programs, **(programs or {})}
        site = Site(self.folder / name, found, Loopback(), lab=self.folder)
        self._beside.append(site)
        return site

    def on_node(self, name: str, programs: Mapping[str, Path]) -> Site:
        """For more programs that run on the real node, as its own do."""
        found = {**self.site.programs, **programs}
        site = Site(self.folder / name, found, self.node.capsule, lab=self.folder)
        self._beside.append(site)
        return site

    def start(self) -> None:
        """Ready at the end: pods can be created, and run where there is a node."""
        started = time.monotonic()
        if self._node is not None:
            self._node.prepare()
        self.control_plane.start()
        if self._node is not None:
            self._node.start()
        self._fake_nodes = FakeNodes(self.api)
        self.ready_s = time.monotonic() - started

    def close(self) -> None:
        """Leave nothing. May be called twice."""
        if self._fake_nodes is not None:
            self._fake_nodes.stop()
        for site in (*self._beside, self.site):
            site.close()
        self._give_back()

    def log_sizes(self) -> dict[Path, int]:
        """How much every program and pod has written by now."""
        return logs.sizes(self._logs())

    def keep_logs(self, target: Path, since: Mapping[Path, int]) -> str:
        """Copy what all programs and pods have written since then; what to tell about it."""
        return logs.keep(self._logs(), since, self.folder, target)

    def _logs(self) -> list[Path]:
        pods = self.folder / "node" / "var-log-pods"
        folders = [*(site.logs for site in (self.site, *self._beside)), pods]
        return [path for folder in folders for path in logs.files_below(folder, ".log")]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _lay_out(
        self, programs: Mapping[str, Path], *, has_node: bool, api_server_extra: Sequence[str]
    ) -> None:
        if has_node:
            check_network(self.plan)
            mark_node(self.folder)
            cgroups.create(self.plan.cgroup)
            self._capsule = Capsule(self.folder, self.plan, NAME)
        self.site = Site(self.folder, programs, self._capsule or Loopback())
        self.control_plane = ControlPlane(
            self.site,
            self.plan,
            Identities(self.folder / "pki"),
            has_node=has_node,
            api_server_extra=api_server_extra,
        )
        if self._capsule is not None:
            self._node = Node(self.site, self._capsule, self.plan, self.control_plane)

    def _give_back(self) -> None:
        if self._capsule is not None:
            self._capsule.close()
        self._claim.release()
