"""A server of somebody else that crashes is a fault of one test, not of all that come after it."""

import signal
import subprocess
from contextlib import ExitStack

import pytest

from tests.fakes.postgres_server import NoPostgresError, PostgresEndedError, postgres_server
from tests.fakes.s3_server import NoS3ServerError, S3EndedError, s3_server
from tests.hang import HANG_S

TABLES = "SELECT 1 FROM pg_tables WHERE schemaname = 'public'"


def crash(process: "subprocess.Popen[bytes] | None") -> None:
    assert process is not None
    process.send_signal(signal.SIGSEGV)
    process.wait(HANG_S)


def test_postgres_runs_again_for_the_next_test() -> None:
    with ExitStack() as module, ExitStack() as test:
        try:
            running = module.enter_context(postgres_server())
        except NoPostgresError as error:
            pytest.skip(str(error))
        server = test.enter_context(running.fresh())
        server.do("CREATE TABLE a ()")
        crash(server.process)
        with pytest.raises(PostgresEndedError, match=r"(?s)exit status -11.*ready to accept"):
            test.close()
        with running.fresh() as server:
            assert server.rows(TABLES) == []


def test_the_s3_server_runs_again_for_the_next_test() -> None:
    with ExitStack() as module, ExitStack() as test:
        try:
            running = module.enter_context(s3_server())
        except NoS3ServerError as error:
            pytest.skip(str(error))
        server = test.enter_context(running.fresh())
        (server.folder / "a").write_bytes(b"1")
        assert server.objects() == {"a": b"1"}
        crash(server.process)
        with pytest.raises(S3EndedError, match="exit status"):
            test.close()
        with running.fresh() as server:
            assert server.objects() == {}
            assert server.process is not None
            assert server.process.poll() is None
