"""The stock program: settings are checked, and without a directory it does not run."""

import logging
from collections.abc import Iterator

import pytest
import structlog

from controller.__main__ import main, run_to_end, uses_kubernetes
from controller.app import StartError
from gpuwarden.settings.loader import CONTROLLER
from gpuwarden.settings.start import settings_or_exit

GOOD = ["--trustDomain", "example.org", "--cluster", "c", "--workloadApi", "unix:///x"]


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _outside_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_without_a_cluster_there_is_no_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GOOD) == 1
    assert "no node directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "environ", "uses"),
    [
        ([], {}, False),
        ([], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        (["--kubernetes.api", "off"], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        (["--kubernetes.api", "inCluster"], {}, True),
        (["--kubernetes.api", "kubeconfig", "--kubernetes.kubeconfig", "/k"], {}, True),
    ],
)
def test_when_the_kubernetes_api_is_used(
    flags: list[str], environ: dict[str, str], *, uses: bool
) -> None:
    settings = settings_or_exit("p", CONTROLLER, [*GOOD, *flags]).settings
    assert uses_kubernetes(settings, environ) is uses


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--kubernetes.api", "kubeconfig"], "kubernetes.kubeconfig"),
        (["--kubernetes.kubeconfig", "/k"], "kubernetes.kubeconfig"),
        (["--kubernetes.context", "c"], "kubernetes.context"),
        (["--kubernetes.api", "off", "--store.kind", "kubernetes"], "store.kind"),
        (["--kubernetes.api", "inCluster", "--store.kind", "sqlite"], "got sqlite; expected"),
        (["--kubernetes.api", "inCluster", "--store.kind", "memory"], "got memory; expected"),
        (["--kubernetes.api", "off", "--policy.source", "cluster"], "policy.source"),
        (["--policy.source", "cluster", "--policy.file", "/p.yaml"], "policy.file"),
        (["--kubernetes.staleAfter", "10s"], "kubernetes.staleAfter"),
    ],
)
def test_settings_that_do_not_fit_together(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*GOOD, *flags])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_bad_settings_end_with_2_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "trustDomain" in capsys.readouterr().err


def test_a_start_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def fails() -> int:
        raise StartError("listen.agents: taken", 1)

    async def runs() -> int:
        return 7

    assert run_to_end(fails) == 1
    assert "process.start.failed" in (line := capsys.readouterr().out)
    assert "listen.agents: taken" in line
    assert len(line.splitlines()) == 1
    assert run_to_end(runs) == 7
