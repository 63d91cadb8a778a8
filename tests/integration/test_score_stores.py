"""What the scoring service keeps its rows in: both databases, and what replicas of PostgreSQL see.

The first tests hold for the SQLite file and for PostgreSQL alike.
"""

import asyncio
import contextlib
import io
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from controller.scorer.__main__ import main
from controller.scorer.app import EXIT_FAULT, run
from controller.scoring.documents import read_observation
from controller.scoring.estimate import Moments
from controller.scoring.learned import Key, Learned, Row, RowKind
from controller.scoring.parameters import Parameters
from controller.store.learned_rows import (
    Learn,
    News,
    Rows,
    ScoreStore,
    ScoresUnavailableError,
    encode_row,
)
from controller.store.postgres_scores import TABLES, PostgresScores
from controller.store.scores import ScoreFile
from gpuwarden.clock import SystemClock
from gpuwarden.settings.database import PostgresDatabase, SslMode
from gpuwarden.settings.loader import SCORE, Inputs, load
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.telemetry import logs
from tests.builders.web_certificates import WebCa
from tests.fakes.eventually import eventually
from tests.fakes.postgres_server import (
    DATABASE,
    PASSWORD,
    USER,
    NoPostgresError,
    PostgresServer,
    postgres_server,
)
from tests.fakes.score_service import RUN, Running

ROW = Row(
    kind=RowKind.PAIR,
    job_type='tr"äin',
    other="A100-80GB",
    alone=Moments(3.0, 1.5, 0.25),
    driver="580.1\x00",
    number=9,
)
OTHER = Row(kind=RowKind.BESIDE, job_type='tr"äin', other="infer", alone=Moments(1.0, 0.5))
NO_KEY = Key(RowKind.PAIR, "no", "such")
REFUSING = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN RAISE EXCEPTION 'disk full'; END$$;"
    " CREATE TRIGGER full_ BEFORE INSERT ON gpuwarden_score_learned"
    " FOR EACH ROW EXECUTE FUNCTION refuse()"
)
TOLD = {**RUN, "run_id": "run-1"}
"""A run that can be known again."""


@pytest.fixture(scope="module")
def running() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except NoPostgresError as error:
        pytest.skip(str(error))


@pytest.fixture
def server(running: PostgresServer) -> Iterator[PostgresServer]:
    with running.fresh():
        yield running


def target(server: PostgresServer, **changes: Any) -> PostgresDatabase:
    found = PostgresDatabase(
        host="127.0.0.1",
        port=server.port,
        database=DATABASE,
        user=USER,
        ssl_mode=SslMode.PREFER,
    )
    return replace(found, **changes)


def postgres(server: PostgresServer, call_seconds: float = 60.0) -> PostgresScores:
    return PostgresScores(target(server), PASSWORD, call_seconds=call_seconds)


Open = Callable[[], ScoreStore]


@dataclass(frozen=True, slots=True)
class Place:
    """One database of either kind."""

    open: Open
    do: Callable[[str], object]
    """Runs a statement in it."""
    runs: str
    """Its table with the ids of runs."""
    refusing: str
    """Makes this table take nothing."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("server")
        refusing = REFUSING.replace("gpuwarden_score_learned", "gpuwarden_score_run")
        return Place(lambda: postgres(server), server.do, "gpuwarden_score_run", refusing)

    def do(statement: str) -> None:
        connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        connection.execute(statement)
        connection.close()

    refusing = "CREATE TRIGGER full_ BEFORE INSERT ON run BEGIN SELECT RAISE(ABORT, 'full'); END"
    return Place(lambda: ScoreFile(tmp_path / "s.db", SystemClock()), do, "run", refusing)


@pytest.fixture
def opening(place: Place) -> Open:
    """Opens the same database each time."""
    return place.open


async def exchanged(store: ScoreStore, rows: Rows = Rows(())) -> News:  # noqa: B008 -- frozen
    found: list[News] = []

    def learn(news: News) -> Rows:
        found.append(news)
        return rows

    await store.exchange(learn)
    (news,) = found
    return news


# --- both


async def test_what_was_written_is_found_by_who_opens_it_next(opening: Open) -> None:
    first = opening()
    first.claim()
    written = Rows((ROW, OTHER), run_ids=("a", "b"))
    assert await exchanged(first, written) == News(is_whole=True)
    changed = replace(ROW, failures=1)
    assert await exchanged(first, Rows((changed,), (OTHER.key, NO_KEY))) == News()
    assert await exchanged(first) == News()
    await first.checkpoint()
    await first.close()
    again = opening()
    found = await exchanged(again)
    assert (found.rows, found.run_ids) == ((changed,), ("a", "b"))
    assert (found.is_whole, found.kept) == (True, False)
    await again.close()


async def test_an_answer_that_fails_changes_nothing(opening: Open) -> None:
    store = opening()
    await exchanged(store, Rows((OTHER,)))

    def odd(_news: News) -> Rows:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.exchange(odd)
    assert await exchanged(store) == News()
    await store.close()
    again = opening()
    assert (await exchanged(again)).rows == (OTHER,)
    await again.close()


async def test_a_service_remembers_what_it_said_it_had_saved(opening: Open) -> None:
    service = Running(store=opening(), max_pairs=2)
    assert await service.saving.write()
    assert (await service.service.observe(RUN))["saved"] is True
    for name in ("a", "b"):
        assert (await service.service.observe({**RUN, "job_type": name}))["saved"] is True
    assert (await service.service.observe({**RUN, "job_type": "b"}))["saved"] is True
    assert (service.heard.gone, service.heard.whole) == (1, [(0, 0)])
    await service.end()
    again = Running(store=opening())
    assert (await again.service.observe({**RUN, "job_type": "a"}))["saved"] is False
    assert await again.saving.write()
    weights = {row.job_type: row.runs().weight for row in again.learned.rows()}
    assert weights == {"a": 2.0, "b": 2.0}
    assert (again.heard.gone, again.heard.whole) == (0, [(1, 2)])
    await again.end()


async def test_a_run_that_was_told_before_a_restart_is_known_again(opening: Open) -> None:
    service = Running(store=opening())
    await service.saving.write()
    assert (await service.service.observe(TOLD))["learned"] is True
    await service.end()
    again = Running(store=opening())
    assert (await again.service.observe(TOLD))["saved"] is False, "it has not read the database"
    assert await again.saving.write()
    answer = {"status": "ok", "learned": False, "saved": True, "repeated": True}
    assert await again.service.observe(TOLD) == answer
    assert (await again.runs(), again.heard.again) == (1.0, ["run-1", "run-1"])
    await again.end()


async def test_the_last_ids_are_kept_in_their_order(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("store.postgres_scores", "store.scores", "scorer.service"):
        monkeypatch.setattr(f"controller.{module}.MOST_RUN_IDS", 3)
    store = opening()
    await exchanged(store, Rows((ROW,), run_ids=("z", "y")))
    await exchanged(store, Rows((ROW,), run_ids=("b", "a")))
    await store.close()
    again = opening()
    assert (await exchanged(again)).run_ids == ("y", "b", "a")
    await exchanged(again, Rows((ROW,)))
    await exchanged(again, Rows((ROW,), run_ids=("d",)))
    await again.close()
    service = Running(store=opening())
    assert await service.saving.write()
    known = [x for x in "zybad" if service.saving.knows(x)]
    assert known == ["b", "a", "d"]
    await service.end()


async def test_a_run_and_its_id_are_durable_together_or_not_at_all(place: Place) -> None:
    service = Running(store=place.open())
    await service.saving.write()
    place.do(place.refusing)
    assert (await service.service.observe(TOLD))["saved"] is False
    assert "full" in service.service.problem
    await service.end()
    place.do(f"DROP TRIGGER full_{'' if place.runs == 'run' else f' ON {place.runs}'}")
    again = Running(store=place.open())
    assert await again.saving.write()
    assert (len(again.learned), again.saving.knows("run-1")) == (0, False)
    assert (await again.service.observe(TOLD))["learned"] is True
    await again.end()


async def test_a_database_of_an_earlier_version_gets_the_table_of_ids(place: Place) -> None:
    store = place.open()
    await exchanged(store, Rows((ROW,)))
    await store.close()
    place.do(f"DROP TABLE {place.runs}")
    service = Running(store=place.open())
    assert await service.saving.write()
    assert service.learned.rows() == (ROW,)
    assert (await service.service.observe(TOLD))["saved"] is True
    await service.end()
    again = place.open()
    assert (await exchanged(again)).run_ids == ("run-1",)
    await again.close()


# --- replicas of PostgreSQL


@pytest.fixture
async def pair(server: PostgresServer) -> AsyncIterator[tuple[Running, Running]]:
    first, second = Running(store=postgres(server)), Running(store=postgres(server))
    assert await first.saving.write()
    assert await second.saving.write()
    yield first, second
    await first.end()
    await second.end()


def in_order(*documents: dict[str, Any]) -> set[Row]:
    """What one replica would have learned from all."""
    learned = Learned(Parameters())
    for document in documents:
        learned.observe(read_observation(document))
    return set(learned.rows())


async def test_no_replica_loses_what_another_learned(
    pair: tuple[Running, Running], server: PostgresServer
) -> None:
    runs = [{**RUN, "measured_runtime_s": 100 + x} for x in range(30)]
    answers = await asyncio.gather(
        *(pair[x % 2].service.observe(document) for x, document in enumerate(runs))
    )
    assert {x["saved"] for x in answers} == {True}
    for replica in pair:
        assert await replica.saving.write()
    assert pair[0].learned.rows() == pair[1].learned.rows()
    (row,) = pair[0].learned.rows()
    (whole,) = in_order(*runs)
    assert (row.runs().weight, row.number) == (30.0, 30)
    assert row.runs().mean == pytest.approx(whole.runs().mean)
    assert row.runs().squares == pytest.approx(whole.runs().squares)
    assert server.rows("SELECT count(*) FROM gpuwarden_score_learned") == [(1,)]


async def test_runs_that_waited_are_learned_on_top_of_what_others_wrote(
    pair: tuple[Running, Running], server: PostgresServer
) -> None:
    first, second = pair
    old = {**RUN, "driver": "1"}
    noisy = {**old, "colocated_job_types": ["noisy"], "measured_runtime_s": 150}
    new = {**RUN, "driver": "2", "measured_runtime_s": 50}
    await first.service.observe(old)
    assert await second.saving.write()
    server.do(REFUSING)
    for document in (noisy, {**old, "status": "failed"}):
        assert (await second.service.observe(document))["saved"] is False
    assert "disk full" in second.service.problem
    assert second.saving.unsaved == 2
    server.do("DROP TRIGGER full_ ON gpuwarden_score_learned")
    for document in (old, new):
        assert (await first.service.observe(document))["saved"] is True
    assert await second.saving.write()
    assert (second.service.problem, second.saving.unsaved) == ("", 0)
    expected = in_order(old, old, new, noisy, {**old, "status": "failed"})
    assert set(second.learned.rows()) == expected
    assert await first.saving.write()
    assert set(first.learned.rows()) == expected


async def test_what_one_replica_forgets_the_others_forget(server: PostgresServer) -> None:
    first, second = Running(store=postgres(server), max_pairs=1), Running(store=postgres(server))
    await first.saving.write()
    await second.saving.write()
    await second.service.observe({**RUN, "job_type": "old"})
    await first.service.observe(RUN)
    assert await second.saving.write()
    assert [row.job_type for row in second.learned.rows()] == ["train"]
    assert first.heard.gone == 1
    await first.end()
    await second.end()


async def test_a_run_that_two_replicas_are_told_counts_once(
    pair: tuple[Running, Running], server: PostgresServer
) -> None:
    runs = [{**RUN, "run_id": f"run-{x}", "measured_runtime_s": 100 + x} for x in range(10)]
    answers = await asyncio.gather(*(x.service.observe(run) for run in runs for x in pair))
    assert [x["learned"] for x in answers].count(True) == 10
    assert [x.get("repeated") for x in answers].count(True) == 10
    assert {x["saved"] for x in answers} == {True}
    assert sum(len(x.heard.again) for x in pair) == 10
    for replica in pair:
        assert await replica.saving.write()
        assert (await replica.service.observe(runs[0]))["repeated"] is True
        assert await replica.runs() == 10.0
    assert server.rows("SELECT count(*) FROM gpuwarden_score_run") == [(10,)]


async def test_a_run_that_waits_at_two_replicas_counts_once(
    pair: tuple[Running, Running], server: PostgresServer
) -> None:
    server.do(REFUSING)
    for replica in pair:
        assert (await replica.service.observe(TOLD))["learned"] is True
        assert (await replica.service.observe({**TOLD, "job_type": "more", "run_id": "2"}))[
            "learned"
        ]
    server.do("DROP TRIGGER full_ ON gpuwarden_score_learned")
    for replica in pair:
        assert await replica.saving.write()
        assert replica.saving.unsaved == 0
    assert [x.heard.again for x in pair] == [[], ["run-1", "2"]]
    for replica in pair:
        assert {x.job_type: x.runs().weight for x in replica.learned.rows()} == {
            "train": 1.0,
            "more": 1.0,
        }


class _LosesAnswers(PostgresScores):
    """Its transactions are done, or undone, and nobody hears it."""

    loses = False
    undoes = False

    async def _transaction(self, connection: AsyncConnection[Any], learn: Learn) -> None:
        if not self.loses:
            await super()._transaction(connection, learn)
            return
        seen = self._change, self._id, self._run
        if self.undoes:
            await connection.execute("BEGIN")
        await super()._transaction(connection, learn)
        if self.undoes:
            await connection.execute("ROLLBACK")
        self._change, self._id, self._run = seen
        raise OSError("the connection is gone")


@pytest.mark.parametrize("undoes", [False, True])
@pytest.mark.parametrize("others", [False, True])
async def test_a_write_whose_answer_is_lost_counts_once(
    server: PostgresServer, undoes: bool, others: bool
) -> None:
    store = _LosesAnswers(target(server), PASSWORD, call_seconds=60.0)
    replica, other = Running(store=store), Running(store=postgres(server))
    await replica.saving.write()
    await other.saving.write()
    store.loses, store.undoes = True, undoes
    assert (await replica.service.observe(RUN))["saved"] is False
    assert (await replica.service.observe({**RUN, "job_type": "more"}))["saved"] is False
    assert replica.saving.unsaved == 2
    store.loses = False
    if others:
        assert (await other.service.observe(RUN))["saved"] is True
    assert await replica.saving.write()
    await other.saving.write()
    weights = {row.job_type: row.runs().weight for row in other.learned.rows()}
    assert weights == {"train": 2.0 if others else 1.0, "more": 1.0}
    assert set(replica.learned.rows()) == set(other.learned.rows())
    await replica.end()
    await other.end()


@pytest.mark.parametrize("undoes", [False, True])
@pytest.mark.parametrize("away", [False, True])
async def test_a_run_whose_answer_is_lost_is_known_to_others_where_it_counts(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, undoes: bool, away: bool
) -> None:
    monkeypatch.setattr("controller.store.postgres_scores.KEPT_WRITES", 2)
    store = _LosesAnswers(target(server), PASSWORD, call_seconds=60.0)
    replica, other = Running(store=store), Running(store=postgres(server))
    await replica.saving.write()
    await other.saving.write()
    store.loses, store.undoes = True, undoes
    assert (await replica.service.observe(TOLD))["saved"] is False
    store.loses = False
    assert ("repeated" in await other.service.observe(TOLD)) is not undoes
    for _ in range(3 if away else 0):  # then nobody knows any more which write that was
        await other.service.observe({**RUN, "job_type": "more"})
    assert await replica.saving.write()
    assert (await replica.service.observe(TOLD))["repeated"] is True
    assert (await replica.runs(), await other.runs()) == (1.0, 1.0)
    await replica.end()
    await other.end()


async def test_a_server_that_restarts_gets_everything(
    pair: tuple[Running, Running], server: PostgresServer
) -> None:
    first, second = pair
    server.stop()
    try:
        assert (await first.service.observe(RUN))["saved"] is False
        assert not await second.saving.write()
        assert await first.runs() == 1.0
        assert PASSWORD not in first.service.problem
    finally:
        server.start()
    assert await first.saving.write()
    assert await second.saving.write()
    assert await second.runs() == 1.0


async def test_who_holds_the_lock_does_not_hold_others_for_ever(server: PostgresServer) -> None:
    patient, store = postgres(server), postgres(server, call_seconds=1.0)
    await exchanged(patient)
    with server.connected() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM gpuwarden_score FOR UPDATE")
        with pytest.raises(ScoresUnavailableError, match=r"no answer within 1 s|timeout"):
            await exchanged(store)

    async def written() -> bool | None:
        """In a second, which a busy machine may miss."""
        with contextlib.suppress(ScoresUnavailableError):
            await exchanged(store, Rows((ROW,)))
            return True
        return None

    await eventually(written, "the lock is free")
    for each in (patient, store):
        await each.close()


async def test_a_request_that_ends_early_leaves_its_run_waiting(
    pair: tuple[Running, Running], server: PostgresServer
) -> None:
    first, _ = pair
    with server.connected() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM gpuwarden_score FOR UPDATE")
        asked = asyncio.ensure_future(first.service.observe(RUN))
        for _ in range(3):
            await asyncio.sleep(0)
        assert first.saving.unsaved == 1
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert first.saving.unsaved == 1
    assert await first.saving.write()
    assert await first.runs() == 1.0


async def test_a_database_that_was_restored_or_emptied_is_what_counts(
    pair: tuple[Running, Running], server: PostgresServer
) -> None:
    first, second = pair
    await first.service.observe(TOLD)
    await second.saving.write()
    for table in TABLES:
        server.do(f"CREATE TABLE saved_{table} AS TABLE {table}")
    await first.service.observe({**RUN, "job_type": "lost", "run_id": "lost"})
    await second.saving.write()
    for table in TABLES:
        server.do(f"TRUNCATE {table}; INSERT INTO {table} TABLE saved_{table}")
    await second.service.observe({**RUN, "job_type": "new"})
    for replica in pair:
        assert await replica.saving.write()
        assert [x.job_type for x in replica.learned.rows()] == ["train", "new"]
        assert [replica.saving.knows(x) for x in ("run-1", "lost")] == [True, False]
    assert first.heard.whole[-1] == (2, 2)
    server.do(f"DROP TABLE {', '.join(TABLES)}")
    assert not await first.saving.write()
    assert await first.saving.write()
    assert first.learned.rows() == ()
    assert first.heard.whole[-1] == (2, 0)


async def test_who_was_away_for_long_reads_all_again(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.store.postgres_scores.KEPT_WRITES", 2)
    first, away = postgres(server), postgres(server)
    await exchanged(first, Rows((ROW, OTHER)))
    assert (await exchanged(away)).is_whole
    await exchanged(first, Rows((ROW,), (OTHER.key,), ("a", "b")))
    assert await exchanged(away) == News((ROW,), (OTHER.key,), ("a", "b"))
    assert await exchanged(away) == News()
    for failures in range(3):
        await exchanged(first, Rows((replace(ROW, failures=failures),)))
    everything = News((replace(ROW, failures=2),), run_ids=("a", "b"), is_whole=True)
    assert await exchanged(away) == everything
    assert server.rows("SELECT change FROM gpuwarden_score_write ORDER BY 1") == [(4,), (5,)]
    assert server.rows("SELECT count(*) FROM gpuwarden_score_learned") == [(1,)]
    await first.close()
    await away.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE gpuwarden_score SET version = 2", "has version 2, this program knows 1"),
        ("DELETE FROM gpuwarden_score", "has version None, this program knows 1"),
        ("UPDATE gpuwarden_score_learned SET kind = 'beside'", "is about something else"),
        ("UPDATE gpuwarden_score_learned SET row = '{}'", "no row of version 1"),
        ("UPDATE gpuwarden_score_learned SET row = NULL, kind = 'odd'", "is of no kind"),
    ],
)
async def test_tables_of_something_else_are_left_alone(
    server: PostgresServer, statement: str, problem: str
) -> None:
    store = postgres(server)
    await exchanged(store, Rows((ROW,)))
    await store.close()
    server.do(statement)
    again = postgres(server)
    with pytest.raises(ScoresUnavailableError, match=problem):
        await exchanged(again)
    assert server.rows("SELECT change FROM gpuwarden_score_write ORDER BY 1") == [(0,), (1,)]


async def test_replicas_that_start_together_make_the_tables_once(server: PostgresServer) -> None:
    stores = [postgres(server) for _ in range(4)]
    await asyncio.gather(*map(exchanged, stores))
    assert server.rows("SELECT count(*) FROM gpuwarden_score_write") == [(1,)]
    for store in stores:
        await store.close()


async def test_a_user_who_may_make_no_tables_uses_those_that_are_there(
    server: PostgresServer,
) -> None:
    server.do("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN PASSWORD 'another-secret'")
    server.do("GRANT USAGE ON SCHEMA public TO plain")
    store = PostgresScores(target(server, user="plain"), "another-secret", call_seconds=60.0)
    denied = "missing, and 'plain' may not make it: permission denied for schema public"
    with pytest.raises(ScoresUnavailableError, match=f"table gpuwarden_score: {denied}"):
        await exchanged(store)
    owner = postgres(server)
    await exchanged(owner)
    await owner.close()
    server.do("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO plain")
    await exchanged(store, Rows((ROW,), run_ids=("a",)))
    await store.close()
    server.do("DROP TABLE gpuwarden_score_run")
    with pytest.raises(ScoresUnavailableError, match=f"table gpuwarden_score_run: {denied}"):
        await exchanged(store)
    server.do("GRANT CREATE ON SCHEMA public TO plain")
    await exchanged(store, Rows((ROW,), run_ids=("b",)))
    await store.close()
    assert server.rows("SELECT id FROM gpuwarden_score_run") == [("b",)]
    server.do("DROP OWNED BY plain")


async def test_a_wrong_password_is_named_and_not_shown(server: PostgresServer) -> None:
    store = PostgresScores(target(server), "another'secret", call_seconds=60.0)
    with pytest.raises(ScoresUnavailableError, match="password authentication failed") as caught:
        await exchanged(store)
    assert "another'secret" not in str(caught.value)


async def test_a_server_without_tls_is_refused_where_tls_is_required(
    server: PostgresServer,
) -> None:
    store = PostgresScores(target(server, ssl_mode=SslMode.REQUIRE), PASSWORD, call_seconds=60.0)
    with pytest.raises(ScoresUnavailableError, match="SSL"):
        await exchanged(store)


async def test_verify_full_proves_the_server(server: PostgresServer, tmp_path: Path) -> None:
    ca, other = WebCa(tmp_path, "ca"), WebCa(tmp_path, "other")

    async def tried(root: WebCa) -> None:
        proven = {"ssl_mode": SslMode.VERIFY_FULL, "ssl_root_cert": str(root.file)}
        store = PostgresScores(target(server, **proven), PASSWORD, call_seconds=60.0)
        try:
            await exchanged(store)
        finally:
            await store.close()

    with server.tls(*ca.issue("right", server=True)):
        await tried(ca)
        with pytest.raises(ScoresUnavailableError, match="certificate verify failed"):
            await tried(other)
    with (
        server.tls(*ca.issue("wrong", server=True, names=("db.example.org",))),
        pytest.raises(ScoresUnavailableError, match="does not match host name"),
    ):
        await tried(ca)


# --- the programs


@pytest.fixture
def environment(server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "password").write_text(PASSWORD)
    monkeypatch.setenv("GPUWARDEN_DATABASE_PASSWORD_FILE", str(tmp_path / "password"))
    return str(target(server))


async def test_it_starts_while_the_server_is_away_and_shows_no_password(
    environment: str, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWARDEN_DATABASE_PASSWORD", PASSWORD)
    written = io.StringIO()
    logs.configure(LogLevel.DEBUG, LogFormat.JSON, service="score", stream=written)
    flags = [("listen", "127.0.0.1:0", "--listen"), ("database", environment, "--database")]
    given = {"GPUWARDEN_DATABASE_PASSWORD": PASSWORD}
    stop = asyncio.Event()
    server.stop()
    try:
        status = await run(
            load(SCORE, Inputs(flags, given)), announce=lambda _: stop.set(), stop=stop
        )
    finally:
        server.start()
    assert status != EXIT_FAULT
    assert '"reason":"postgresql://' in written.getvalue().replace(": ", ":")
    assert PASSWORD not in written.getvalue().replace("\\\\", "\\").replace('\\"', '"')


def test_export_and_import(
    environment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    between = tmp_path / "learned.jsonl"
    database = ["--database", environment]
    assert main(["export", *database]) == 0
    header = capsys.readouterr().out
    between.write_text(header + "".join(map(_line, (ROW, OTHER))))
    assert main(["import", str(between), *database]) == 0
    assert capsys.readouterr().out == f"2 rows are in {environment}\n"
    assert main(["import", str(between), *database]) == 1
    assert "it has 2 rows; --replace takes their place" in capsys.readouterr().err
    between.write_text(header + _line(ROW))
    assert main(["import", str(between), "--replace", *database]) == 0
    capsys.readouterr()
    assert main(["export", *database]) == 0
    assert capsys.readouterr().out == header + _line(ROW)


def _line(row: Row) -> str:
    return f"{encode_row(row)}\n"


def test_without_a_password_it_says_what_is_missing(
    environment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPUWARDEN_DATABASE_PASSWORD_FILE")
    assert main(["export", "--database", environment]) == 2
    assert "databasePassword" in capsys.readouterr().err


def test_the_password_of_a_url_is_refused_and_not_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", "--database", "postgresql://u:geh/ei@m@h/d"]) == 2
    error = capsys.readouterr().err
    assert "no password in it" in error
    assert not any(x in error for x in ("geh", "ei@m"))
