"""Where the scoring service keeps what it learns: a file, or a URL of PostgreSQL."""

from pathlib import Path

import pytest

from gpuwarden.settings.database import PostgresDatabase, SslMode
from gpuwarden.settings.loader import SCORE, Inputs, SettingsError, load
from gpuwarden.settings.report import render
from gpuwarden.settings.score import ScoreSettings

FULL = PostgresDatabase(
    host="db.example",
    port=6432,
    database="c/o?r",
    user="a b@c",
    ssl_mode=SslMode.VERIFY_FULL,
    ssl_root_cert="/d b.pem",
)


def score(**environment: str) -> ScoreSettings:
    return load(SCORE, Inputs((), environment)).settings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "postgresql://a%20b%40c@db.example:6432/c%2Fo%3Fr?sslmode=verify-full&sslrootcert=/d%20b.pem",
            FULL,
        ),
        ("postgres://u@h/d", PostgresDatabase(host="h", database="d", user="u")),
        (
            "postgresql://u@[fd00::1]:1/d",
            PostgresDatabase(host="fd00::1", port=1, database="d", user="u"),
        ),
        (
            "postgresql://u@%2Frun%2Fpostgresql:65535/d?sslmode=disable",
            PostgresDatabase(
                host="/run/postgresql",
                port=65535,
                database="d",
                user="u",
                ssl_mode=SslMode.DISABLE,
            ),
        ),
    ],
)
def test_a_url_and_how_it_is_shown(text: str, found: PostgresDatabase) -> None:
    assert PostgresDatabase.parse(text) == found
    assert PostgresDatabase.parse(str(found)) == found


def test_tls_is_required_unless_the_url_says_otherwise() -> None:
    assert PostgresDatabase.parse("postgresql://u@h/d").ssl_mode is SslMode.REQUIRE


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://h/d",
        "postgresql://@h/d",
        "postgresql://u@/d",
        "postgresql://u@h",
        "postgresql://u@h/",
        "postgresql://u:p@h/d",
        "postgresql://u:@h/d",
        "postgresql://u@h:0/d",
        "postgresql://u@h:65536/d",
        "postgresql://u@h:x/d",
        "postgresql://u@h,i/d",
        "postgresql://u@h/d#f",
        "postgresql://u@h/d?sslmode=sometimes",
        "postgresql://u@h/d?sslmode=require&sslmode=disable",
        "postgresql://u@h/d?sslrootcert=relative.pem",
        "postgresql://u@h/d?sslrootcert=",
        "postgresql://u@h/d?password=p",
        "postgresql://u@h/d?options",
        "postgresql://u@h/d%00",
        f"postgresql://u@h/{'d' * 64}",
        "postgresql:u@h/d",
        "mysql://u@h/d",
        "sqlite:///score.db",
    ],
)
def test_what_is_no_such_url(text: str) -> None:
    with pytest.raises(SettingsError, match="no password in it"):
        score(GPUWARDEN_DATABASE=text, GPUWARDEN_DATABASE_PASSWORD="p")  # noqa: S106 -- a test's


def test_a_path_is_a_file() -> None:
    assert score().database == Path("/var/lib/gpuwarden/score.db")
    assert score(SCHEDULER_SQLITE_PATH="a:b/s.db").database == Path("a:b/s.db")


def test_a_server_needs_a_password_which_nobody_sees() -> None:
    with pytest.raises(SettingsError, match=r"databasePassword: got nothing; .*PasswordFile"):
        score(GPUWARDEN_DATABASE="postgresql://u@h/d")
    given = {"GPUWARDEN_DATABASE": "postgresql://u@h/d", "GPUWARDEN_DATABASE_PASSWORD": "pa'ss"}
    loaded = load(SCORE, Inputs((), given))
    assert loaded.settings.database_password == "pa'ss"  # noqa: S105 -- a test's
    assert "pa'ss" not in render(loaded)
    assert "postgresql://u@h:5432/d?sslmode=require" in render(loaded)
