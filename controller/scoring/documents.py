"""Requests and answers of the scoring service as JSON documents: the seed's fields and aliases.

Requests come from anybody who reaches the port. What cannot be meant is refused with the name of
the field; a number that is none is left out with a warning where the score can do without it.
Unknown fields are ignored: older clients send some.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from controller.scoring.learned import Observation
from controller.scoring.score import Candidate, Job, NoneLargeEnoughError, Scored

MOST_CANDIDATES: Final = 64
MOST_COLOCATED: Final = 256
MOST_JOBS: Final = 64
_LONGEST_NAME: Final = 253
_LONGEST_RUN_S: Final = 1e9
_MOST_GIB: Final = 1e6
_GPU_TYPE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DIGITS: Final = 5
_SHOWN: Final = 80
_FAILED: Final = frozenset({"failed", "failure", "error", "evicted", "cancelled", "canceled"})
_SUCCEEDED: Final = frozenset({"succeeded", "success", "completed", "complete", "ok"})


class BadRequestError(Exception):
    """A document that cannot be meant: which field, what it holds, what was expected."""

    def __init__(self, field: str, got: object, expected: str) -> None:
        self.field = field
        super().__init__(f"{field}: {_quoted(got)}, expected {expected}" if field else expected)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A job to score."""

    job: Job
    counts: bool
    """Whether the decision is one; not so of a dry run."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangRequest:
    """Jobs to assign at once."""

    jobs: tuple[ScoreRequest, ...]
    names: tuple[str, ...]
    capacity: Mapping[str, int]
    """How many jobs each GPU type takes."""


# --- reading


def read_document(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Read a JSON object; raises BadRequestError.

    NaN and Infinity are read as numbers, as Python's clients write them: the field decides.
    """
    try:
        found = json.loads(bytes(body), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("", None, f"the body is no JSON document: {error}") from None
    if not isinstance(found, dict):
        raise BadRequestError("", None, "the body must be a JSON object")
    return found


def read_score(document: Mapping[str, Any], known: Mapping[str, float]) -> ScoreRequest:
    """What `/v1/score` takes; `known` are the GPU types that are configured with their GiB.

    Without any every name is a type. Raises BadRequestError.
    """
    warnings: list[str] = []
    features = _mapping(document, "features")
    job_type = document.get("job_type", features.get("job_type"))
    candidates = _gpu_types(document, known)
    return ScoreRequest(
        Job(
            job_type=_name("job_type", job_type),
            candidates=candidates,
            colocated=_names(document, "colocated_job_types", "colocated"),
            gpu_mem_gb=_feature(features, "gpu_mem_gb", warnings),
            memory_gb={**known, **_memories(document, candidates, warnings)},
            image=_optional_name(document, "image"),
        ),
        counts=not _flag(document, "dry_run", default=False),
        warnings=(*warnings, *_checked_features(features)),
    )


def read_gang(document: Mapping[str, Any], known: Mapping[str, float]) -> GangRequest:
    """What `/v1/assign` takes; raises BadRequestError."""
    capacity = document.get("capacity")
    if not isinstance(capacity, dict) or not capacity:
        raise BadRequestError("capacity", capacity, "how many jobs each GPU type takes")
    for name, count in capacity.items():
        if not _is_whole(count) or not 0 <= count <= MOST_JOBS:
            raise BadRequestError(f"capacity.{name}", count, f"a whole number, 0 to {MOST_JOBS}")
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or not 1 <= len(jobs) <= MOST_JOBS:
        raise BadRequestError("jobs", jobs, f"a list of 1 to {MOST_JOBS} jobs")
    requests, names = [], []
    for at, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise BadRequestError(f"jobs[{at}]", job, "an object")
        names.append(_name(f"jobs[{at}].name", job.get("name", str(at))))
        try:
            requests.append(
                read_score({**job, "candidate_gpu_types": list(capacity), "dry_run": True}, known)
            )
        except BadRequestError as error:
            if error.field.startswith("candidate_gpu_types"):
                raise
            raise _within(f"jobs[{at}].", error) from None
    if len(set(names)) < len(names):
        raise BadRequestError("jobs", names, "names that differ")
    return GangRequest(tuple(requests), tuple(names), capacity)


def read_observation(document: Mapping[str, Any]) -> Observation:
    """What `/v1/observe` takes; raises BadRequestError."""
    succeeded = _succeeded(document)
    field, runtime = _first(document, "measured_runtime_s", "runtime_seconds", "actual_runtime")
    is_time = _is_number(runtime) and 0 < runtime <= _LONGEST_RUN_S
    if not is_time and (succeeded or runtime is not None):
        raise BadRequestError(field, runtime, f"seconds above 0, at most {_LONGEST_RUN_S:g}")
    return Observation(
        job_type=_name("job_type", document.get("job_type")),
        gpu_type=_gpu_type("gpu_type", document.get("gpu_type")),
        runtime_s=float(runtime) if is_time else 0.0,
        colocated=_names(document, "colocated_job_types", "colocated"),
        succeeded=succeeded,
        driver=_optional_name(document, "driver"),
        image=_optional_name(document, "image"),
        run_id=_optional_name(document, "run_id"),
    )


def _within(prefix: str, error: BadRequestError) -> BadRequestError:
    found = BadRequestError("", None, f"{prefix}{error}")
    found.field = prefix + error.field
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is there twice")
    return found


def _first(document: Mapping[str, Any], *names: str) -> tuple[str, Any]:
    """The first of several names for one field that is there, and its value."""
    return next(((name, document[name]) for name in names if name in document), (names[0], None))


def _gpu_types(document: Mapping[str, Any], known: Mapping[str, float]) -> tuple[str, ...]:
    field, found = _first(document, "candidate_gpu_types", "candidates")
    if not isinstance(found, list) or not 1 <= len(found) <= MOST_CANDIDATES:
        raise BadRequestError(field, found, f"a list of 1 to {MOST_CANDIDATES} GPU types")
    for at, name in enumerate(found):
        _gpu_type(f"{field}[{at}]", name)
        if name in found[:at]:
            raise BadRequestError(f"{field}[{at}]", name, "each GPU type once")
        if known and name not in known:
            expected = f"a type that is configured ({', '.join(sorted(known))})"
            raise BadRequestError(f"{field}[{at}]", name, expected)
    return tuple(found)


def _gpu_type(field: str, found: object) -> str:
    if not isinstance(found, str) or not _GPU_TYPE.fullmatch(found):
        raise BadRequestError(field, found, "a GPU type: a label value of 1 to 63 characters")
    return found


def _name(field: str, found: object) -> str:
    if not isinstance(found, str) or not 1 <= len(found) <= _LONGEST_NAME or not _is_plain(found):
        raise BadRequestError(field, found, f"1 to {_LONGEST_NAME} printable characters")
    return found


def _is_plain(text: str) -> bool:
    return text.isprintable() and text == text.strip()


def _optional_name(document: Mapping[str, Any], field: str) -> str:
    found = document.get(field)
    return _name(field, found) if found not in (None, "") else ""


def _names(document: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """Names of job types; the same several times counts once."""
    field, found = _first(document, *names)
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) > MOST_COLOCATED:
        raise BadRequestError(field, found, f"a list of at most {MOST_COLOCATED} job types")
    return tuple(dict.fromkeys(_name(f"{field}[{at}]", x) for at, x in enumerate(found)))


def _mapping(document: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = document.get(field)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRequestError(field, found, "an object")
    return found


def _memories(
    document: Mapping[str, Any], candidates: Sequence[str], warnings: list[str]
) -> dict[str, float]:
    field = "candidate_gpu_mem_gb"
    given = _mapping(document, field)
    for name in given:
        if name not in candidates:
            raise BadRequestError(f"{field}.{name}", given[name], "a type of candidate_gpu_types")
    found = {name: _quantity(f"{field}.{name}", value, warnings) for name, value in given.items()}
    return {name: value for name, value in found.items() if value is not None}


def _feature(features: Mapping[str, Any], name: str, warnings: list[str]) -> float | None:
    if features.get(name) is None:
        return None
    return _quantity(f"features.{name}", features[name], warnings)


def _quantity(field: str, found: object, warnings: list[str]) -> float | None:
    if _is_number(found) and 0 < found <= _MOST_GIB:
        return float(found)
    warnings.append(f"{field}: {_quoted(found)} is ignored, expected a number above 0")
    return None


def _checked_features(features: Mapping[str, Any]) -> list[str]:
    """Features that are taken and do not count: what is wrong with them is said all the same."""
    warnings: list[str] = []
    _feature(features, "batch_size", warnings)
    return warnings


def _flag(document: Mapping[str, Any], field: str, *, default: bool) -> bool:
    found = document.get(field, default)
    if not isinstance(found, bool):
        raise BadRequestError(field, found, "true or false")
    return found


def _succeeded(document: Mapping[str, Any]) -> bool:
    """By `success` (a boolean) or `status` (a word); a run of which neither is said succeeded."""
    if "success" in document:
        return _flag(document, "success", default=True)
    status = document.get("status", "succeeded")
    word = status.lower() if isinstance(status, str) else ""
    if word not in _FAILED | _SUCCEEDED:
        raise BadRequestError("status", status, "succeeded or failed")
    return word in _SUCCEEDED


def _is_number(found: object) -> TypeGuard[float]:
    return isinstance(found, int | float) and not isinstance(found, bool) and _is_finite(found)


def _is_finite(found: float) -> bool:
    try:
        return math.isfinite(found)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _is_whole(found: object) -> TypeGuard[int]:
    return isinstance(found, int) and not isinstance(found, bool)


def _quoted(found: object) -> str:
    try:
        text = json.dumps(found)
    except (ValueError, RecursionError):
        text = "…"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- answers


def score_answer(scored: Scored, label: str, warnings: Sequence[str]) -> dict[str, Any]:
    """What `/v1/score` answers; `label` is the node label that holds the type."""
    chosen = scored.chosen
    return {
        "priority_score": round(chosen.score, 2),
        "gpu_selector": {
            "nodeSelector": {label: chosen.gpu_type},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
            ],
        },
        "avoid_co_locate_with": list(scored.avoid),
        "terms": {**_terms(chosen), "chosen_gpu": chosen.gpu_type},
        "decision": scored.decision.value,
        "candidates": [
            {"gpu_type": x.gpu_type, "score": round(x.score, 2), **_terms(x)}
            for x in scored.candidates
        ],
        "excluded": [{"gpu_type": name, "reason": "memory"} for name in scored.too_small],
        "warnings": list(warnings),
    }


def _terms(candidate: Candidate) -> dict[str, float]:
    terms: Mapping[str, float] = {
        "mu": candidate.estimate.mu,
        "sigma": candidate.estimate.sigma,
        "ig": candidate.information_gain,
        "penalty": candidate.penalty,
        "cost": candidate.cost,
        "relative_cost": candidate.relative_cost,
        "speed": candidate.speed,
        "certainty": candidate.certainty,
        "quiet": candidate.quiet,
        "fit": candidate.fit,
        "runs": candidate.runs,
    }
    return {name: round(value, _DIGITS) for name, value in terms.items()}


def none_large_enough(error: NoneLargeEnoughError, need: float | None) -> BadRequestError:
    """A job that fits no candidate."""
    expected = f"at most {error.largest:g}: no candidate type has more memory"
    return BadRequestError("features.gpu_mem_gb", need, expected)
