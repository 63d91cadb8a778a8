"""kube-scheduler, the default one or another beside it with its own profiles and identity."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.lab.api import Api
from tests.e2e.lab.kubeconfig import written
from tests.e2e.lab.pki import Pair
from tests.e2e.lab.program import Program, Site

_PORT = 10259


class Scheduler(Program):
    """`settings` are fields of KubeSchedulerConfiguration (profiles, extenders, …)."""

    def __init__(
        self,
        site: Site,
        kubeconfig: Path,
        serving: Pair,
        ca: Path,
        *,
        name: str = "kube-scheduler",
        usual_port: int = _PORT,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(site, name, usual_port=usual_port)
        self._kubeconfig = kubeconfig
        self._serving = serving
        self._ca = ca
        self.settings = settings or {}

    def arguments(self) -> Sequence[str]:
        configuration = written(
            self.data / "configuration.yaml",
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {"kubeconfig": str(self._kubeconfig)},
                "leaderElection": {"leaderElect": False},
                **self.settings,
            },
        )
        return (
            str(self.site.programs["kube-scheduler"]),
            f"--config={configuration}",
            f"--authentication-kubeconfig={self._kubeconfig}",
            f"--authorization-kubeconfig={self._kubeconfig}",
            f"--client-ca-file={self._ca}",
            f"--bind-address={self.site.place.address}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
        )

    def is_ready(self) -> bool:
        return self._asked().answers("/readyz")

    def metric(self, series: str, administrator: Pair) -> float:
        """The value of one series; 0 where there is none."""
        lines = self._asked(administrator).text("/metrics").splitlines()
        found = (line.rpartition(" ") for line in lines)
        return next((float(value) for name, _, value in found if name == series), 0.0)

    def _asked(self, pair: Pair | None = None) -> Api:
        return Api(f"https://{self.site.place.address}:{self.port}", self._ca, pair)
