"""One scoring service from start to end: opens the database, listens, writes, and closes."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from controller.operations.readiness import Readiness
from controller.scorer.databases import score_store
from controller.scorer.http import score_app
from controller.scorer.recorder import LISTENER, ConnectionRecorder, ScoreRecorder
from controller.scorer.service import EXCHANGE_S, Saving, ScoreService
from controller.scoring.learned import Learned
from controller.scoring.parameters import Parameters
from controller.store.learned_rows import InUseError, ScoreStore
from controller.web.listener import ConnectionLimits, HttpServer
from controller.web.server import OpsServer, ops_app
from gpuwarden import __version__
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.report import effective
from gpuwarden.settings.score import ScoreSection, ScoreSettings
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import logs, names, score_names
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event, Process

SERVICE: Final = "score"
EXIT_OK: Final = 0
EXIT_FAULT: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def parameters_of(section: ScoreSection) -> Parameters:
    """What the settings say about the score."""
    return Parameters(
        lambda_uncertainty=section.lambda_uncertainty,
        beta_exploration=section.beta_exploration,
        gamma_interference=section.gamma_interference,
        tau_squared=section.tau_squared,
        exploration_cap=section.exploration_cap,
        exploration_window=section.exploration_window,
        enable_interference=section.enable_interference,
        enable_sinkhorn=section.enable_sinkhorn,
        avoid_threshold=section.avoid_threshold,
        retention_observations=section.retention_observations,
        max_pairs=section.max_pairs,
        prior_mean=section.prior_mean,
        prior_sigma=section.prior_sigma,
    )


async def run(
    loaded: Loaded[ScoreSettings],
    *,
    announce: Callable[[str], None],
    stop: asyncio.Event | None = None,
    exchange_s: float = EXCHANGE_S,
) -> int:
    """Serve until SIGTERM, SIGINT or `stop`; `announce` gets the address. Returns the exit status.

    A file that another process writes ends it at once. Any other trouble with a database does not.
    """
    settings, log = loaded.settings, logs.logger(SERVICE)
    log.info(Event.CONFIG_EFFECTIVE, config=effective(loaded))
    for finding in loaded.warnings:
        log.warning(Event.CONFIG_IGNORED, warning=str(finding))
    store = score_store(settings.database, settings.database_password)
    try:
        with suppress(OSError):  # told once it is tried again
            store.claim()
    except InUseError as error:
        log.error(Event.PROCESS_START_FAILED, detail=str(error))  # noqa: TRY400 -- says it all
        return EXIT_FAULT
    return await _serve(settings, store, announce, stop or asyncio.Event(), exchange_s)


async def _serve(
    settings: ScoreSettings,
    store: ScoreStore,
    announce: Callable[[str], None],
    stop: asyncio.Event,
    exchange_s: float,
) -> int:
    log = logs.logger(SERVICE)
    instruments = Instruments(Process.SCORE, __version__)
    recorder = ScoreRecorder(instruments)
    parameters = parameters_of(settings.score)
    learned = Learned(parameters)
    saving = Saving(learned, store, recorder)
    service = ScoreService(
        parameters,
        learned,
        saving,
        recorder,
        gpu_types=settings.score.gpu_types,
        node_label=settings.score.node_label,
    )
    _show(instruments, learned, saving)
    about: dict[str, Any] = {
        "service": "gpuwarden-score",
        "version": __version__,
        "config": asdict(parameters),
    }
    app = score_app(
        service,
        recorder,
        render_metrics=instruments.render,
        about=about,
        max_body=settings.max_body,
    )
    server = HttpServer(
        app,
        name=LISTENER,
        address=settings.listen,
        tls=None,
        limits=ConnectionLimits(),
        observer=ConnectionRecorder(LISTENER, instruments),
    )
    servers = [server]
    if settings.ops is not None:
        probes = ops_app(lambda: _readiness(saving), instruments.render, None)
        observer = ConnectionRecorder("ops", instruments)
        servers.append(OpsServer(probes, settings.ops, observer=observer))
    await saving.write()
    addresses: list[str] = []
    try:
        for each in servers:
            addresses.append(str(Address(*await each.start())))
            connections: Callable[[], float] = each.__len__
            instruments.gauge(names.CONNECTIONS).labels(each.name).set_function(connections)
            log.info(Event.LISTENER_OPEN, listener=each.name, address=addresses[-1])
    except OSError as error:
        log.error(Event.PROCESS_START_FAILED, detail=f"listen: {error}")  # noqa: TRY400
        await _stop(servers)
        await saving.close()
        return EXIT_FAULT
    _obey_signals(stop)
    announce(addresses[0])
    log.info(Event.PROCESS_STARTED, version=__version__)
    tasks = [
        asyncio.ensure_future(_exchange(saving, exchange_s)),
        asyncio.ensure_future(_checkpoint(saving, float(settings.checkpoint_interval))),
    ]
    ended = asyncio.ensure_future(stop.wait())
    await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    status = EXIT_OK if stop.is_set() else EXIT_FAULT
    for task in (*tasks, ended):
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            log.error(Event.PROCESS_FAULT, exc_info=result)
    await _stop(servers)
    if saving.unsaved and not await saving.write():
        log.error(Event.SCORE_STORE_FAILED, reason=saving.problem, rows=saving.unsaved, lost=True)
        status = EXIT_FAULT
    await saving.close()
    log.info(Event.PROCESS_STOPPED, status=status)
    return status


async def _stop(servers: Sequence[HttpServer]) -> None:
    for each in servers:
        await each.stop()


def _readiness(saving: Saving) -> Readiness:
    return Readiness((f"store: {saving.problem}",) if saving.problem else (), ())


def _obey_signals(stop: asyncio.Event) -> None:
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _exchange(saving: Saving, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await saving.write()


async def _checkpoint(saving: Saving, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await saving.checkpoint()


def _show(instruments: Instruments, learned: Learned, saving: Saving) -> None:
    rows: Callable[[], float] = learned.__len__
    instruments.gauge(score_names.SCORE_ROWS).set_function(rows)
    instruments.gauge(score_names.SCORE_UNSAVED).set_function(lambda: float(saving.unsaved))
    instruments.gauge(names.READY).set_function(lambda: float(not saving.problem))
