"""Settings of all tests: nothing depends on how busy the machine is, or on which process runs."""

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

_LONGEST_ID = 40

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Other examples in each run: `make test-random`."""
settings.register_profile("steady", settings.get_profile("random"), derandomize=True)
settings.load_profile("steady")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: Python searches none of it for garbage, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text gets its argument's name: it may be drawn again in every process."""
    is_long = isinstance(val, str | bytes) and len(val) > _LONGEST_ID
    return argname if is_long else None
