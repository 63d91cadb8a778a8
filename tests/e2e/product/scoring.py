"""`gpuwarden-score` as a program beside the lab, and what it is taught."""

import json
import sys
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from gpuwarden.settings.values import Address
from tests.e2e.lab.program import Program, Site
from tests.e2e.product.controller import ROOT

_ASK_S: Final = 10


class ScoringService(Program):
    """One service; what it has learned is in a file that outlives its process."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "score")
        self._address = Address(site.place.address, site.place.port(0))

    @property
    def url(self) -> str:
        """For `hints.schedulerUrl`."""
        return f"http://{self._address}"

    def learn(
        self, job_type: str, gpu_type: str, *runtimes_s: float, beside: Sequence[str] = ()
    ) -> None:
        """Report runs with the GPU alone, or beside other types of jobs."""
        for seconds in runtimes_s:
            run = {
                "job_type": job_type,
                "gpu_type": gpu_type,
                "measured_runtime_s": seconds,
                "colocated_job_types": list(beside),
            }
            url, body = f"http://{self._address}/v1/observe", json.dumps(run).encode()
            with urllib.request.urlopen(url, body, timeout=_ASK_S) as answer:
                assert json.load(answer)["saved"]

    def arguments(self) -> Sequence[str]:
        file = str(self.data / "score.db")
        listen = ("--listen", str(self._address))
        return (sys.executable, "-m", "controller.scorer", *listen, "--database", file)

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT), "HOME": str(self.data), "LANG": "C.UTF-8"}

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/readyz", timeout=_ASK_S) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False
