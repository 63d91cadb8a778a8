"""Settings of the scoring service. Pure; `loader` fills them.

The variables `SCHEDULER_…` are those of an older scoring service.
"""

# ruff: noqa: RUF009 -- the defaults are frozen values

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from gpuwarden.settings import keys
from gpuwarden.settings.database import PostgresDatabase
from gpuwarden.settings.keys import Spec
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.settings.values import Address

KIND = "ScoreConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLogSettings:
    """Section `log` of the scoring service."""

    level: Annotated[
        LogLevel,
        Spec(
            keys.one_of(LogLevel),
            "least severe level written; another word in `SCHEDULER_LOG_LEVEL` means `info`, with a"
            " warning",
            aliases=("SCHEDULER_LOG_LEVEL",),
            alias_warns=True,
        ),
    ] = LogLevel.INFO
    format: Annotated[
        LogFormat, Spec(keys.one_of(LogFormat), "`json` for collectors, `text` for people")
    ] = LogFormat.JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSection:
    """Section `score`: weights, first beliefs and bounds."""

    lambda_uncertainty: Annotated[
        float,
        Spec(
            keys.decimal(0, 1000),
            "weight of the uncertainty of a run time in its cost",
            aliases=("SCHEDULER_LAMBDA_UNCERTAINTY",),
        ),
    ] = 0.3
    beta_exploration: Annotated[
        float,
        Spec(
            keys.decimal(0, 1000),
            "weight of what one more run would tell",
            aliases=("SCHEDULER_BETA_EXPLORATION",),
        ),
    ] = 0.7
    gamma_interference: Annotated[
        float,
        Spec(
            keys.decimal(0, 1000),
            "weight of the slowdown by jobs beside it",
            aliases=("SCHEDULER_GAMMA_INTERFERENCE",),
        ),
    ] = 0.5
    tau_squared: Annotated[
        float,
        Spec(
            keys.decimal(0, 1e6, above=True),
            "variance of the noise of run times, for what one more run would tell",
            aliases=("SCHEDULER_TAU_SQUARED",),
        ),
    ] = 0.15
    exploration_cap: Annotated[
        float,
        Spec(
            keys.decimal(0, 1),
            "largest share of decisions that try a GPU type on which a job has not run",
            aliases=("SCHEDULER_EXPLORATION_CAP",),
        ),
    ] = 0.25
    exploration_window: Annotated[
        int,
        Spec(keys.whole_number(1, 100_000), "number of last decisions over which the cap holds"),
    ] = 200
    enable_interference: Annotated[
        bool,
        Spec(
            keys.FLAG,
            "whether slowdowns by jobs beside it count",
            aliases=("SCHEDULER_ENABLE_INTERFERENCE",),
        ),
    ] = True
    avoid_threshold: Annotated[
        float,
        Spec(keys.decimal(0, 1000), "slowdown above which a type of job is avoided; 0.1 is 10 %"),
    ] = 0.1
    enable_sinkhorn: Annotated[
        bool,
        Spec(
            keys.FLAG,
            "whether `/v1/assign` assigns the jobs of a gang at once",
            aliases=("SCHEDULER_ENABLE_SINKHORN",),
        ),
    ] = False
    retention_observations: Annotated[
        int,
        Spec(
            keys.whole_number(1, 10**6),
            "number of runs that an estimate weighs at most; older ones fade",
            aliases=("SCHEDULER_RETENTION_OBSERVATIONS",),
        ),
    ] = 1000
    max_pairs: Annotated[
        int,
        Spec(
            keys.whole_number(1, 10**6),
            "number of pairs (of job type and GPU type, and of job types) that are remembered at"
            " most; those unchanged for longest go first",
        ),
    ] = 10_000
    prior_mean: Annotated[
        float,
        Spec(
            keys.decimal(0, 1e9, above=True),
            "run time in seconds that is expected where nothing is known",
        ),
    ] = 10.0
    prior_sigma: Annotated[
        float,
        Spec(keys.decimal(0, 1e9, above=True), "how uncertain that is: its standard deviation"),
    ] = 5.0
    gpu_types: Annotated[
        Mapping[str, float],
        Spec(
            keys.GPU_MEMORIES,
            "GPU types that may be asked about, with the memory of one GPU; nothing: every name,"
            " and the memory that is in it",
        ),
    ] = field(default_factory=lambda: MappingProxyType({}))
    node_label: Annotated[
        str, Spec(keys.ANNOTATION_KEY, "node label that holds the GPU type, for answers")
    ] = "gpu.nvidia.com/class"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSettings:
    """Everything that can be set about the scoring service."""

    listen: Annotated[
        Address,
        Spec(
            keys.ADDRESS,
            "where it listens; port 0 = any free one. `SCHEDULER_HOST` and `SCHEDULER_PORT` are"
            " taken too",
            aliases=("SCHEDULER_LISTEN",),
            alias_warns=True,
        ),
    ] = Address("127.0.0.1", 8080)
    ops: Annotated[
        Address | None,
        Spec(
            keys.ADDRESS_OR_OFF,
            "where `/healthz`, `/readyz` and `/metrics` are served as well, for who is to see them"
            " and not to teach it",
        ),
    ] = None
    database: Annotated[
        Path | PostgresDatabase,
        Spec(
            keys.SCORE_DATABASE,
            "what is learned is kept there: an SQLite file, which one process writes, or a database"
            " of PostgreSQL, which several replicas share",
            aliases=("SCHEDULER_SQLITE_PATH",),
        ),
    ] = Path("/var/lib/gpuwarden/score.db")
    database_password: Annotated[
        str | None, Spec(keys.SECRET, "password for PostgreSQL", secret=True)
    ] = None
    checkpoint_interval: Annotated[
        int,
        Spec(
            keys.whole_number(1, 86_400),
            "seconds after which SQLite's write-ahead log is folded into the file; what was"
            " learned is durable at once",
            aliases=("SCHEDULER_CHECKPOINT_INTERVAL",),
        ),
    ] = 300
    max_body: Annotated[
        int, Spec(keys.whole_number(1024, 1 << 24), "largest request body in bytes")
    ] = 64 << 10
    score: ScoreSection = field(default_factory=ScoreSection)
    log: ScoreLogSettings = field(default_factory=ScoreLogSettings)
