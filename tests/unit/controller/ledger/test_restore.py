from dataclasses import replace

import pytest

from controller.ledger.record import GpuRecord, HolderState, RecordInvalidError
from controller.ledger.restore import LoggedGrant, restored_as_releasing
from tests.builders.ledger import CALL, POD, in_state, record

GRANT = LoggedGrant("GPU-a", "gpu-1", "v1.k.uid-0", POD, ("GPU-b", "GPU-a"))


@pytest.mark.parametrize(
    "found",
    [None, replace(record(), node="gpu-2"), in_state(HolderState.RELEASING)],
    ids=["free", "elsewhere", "held"],
)
def test_a_grant_of_no_gpus_of_ours_is_an_error_whatever_the_ledger_has(
    found: GpuRecord | None,
) -> None:
    with pytest.raises(RecordInvalidError, match="gpus: expected each once, sorted"):
        restored_as_releasing(found, GRANT, CALL)
