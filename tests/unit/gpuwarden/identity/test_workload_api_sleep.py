"""That the library which watches the Workload API sleeps while nothing comes."""

import threading

import grpc._common  # what is set there is what this is about

from gpuwarden.identity.workload_api import WAKE_S


def test_blocking_calls_of_grpc_sleep_long_and_end_at_once() -> None:
    done, sleeps = threading.Event(), list[float]()

    def sleep(*, timeout: float) -> bool:
        sleeps.append(timeout)
        done.set()
        return True

    assert grpc._common.wait(sleep, done.is_set) is False
    assert sleeps == [WAKE_S]
