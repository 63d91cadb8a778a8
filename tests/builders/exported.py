"""Facts and records of GPUs for tests of exporters."""

from typing import Any

from controller.export.records import ExportRecord, Facts

CLUSTER = "prod"


def facts(number: int = 0, **changes: Any) -> Facts:
    """What evidence shows about GPU `number`."""
    values: dict[str, Any] = {
        "node": "gpu-1",
        "machine": "i-0123",
        "source": "spiffe://example.org/gpuwarden/agent/gpu-1",
        "chassis": "unknown",
        "gpu": f"16501234{number:05}",
        "uuid": f"GPU-{number:08x}-0000-0000-0000-000000000000",
        "product": "NVIDIA H100 80GB HBM3",
        "class_hash": "v1:sha256:" + "a" * 64,
        "level": "L1",
        "evidence": "e" * 64,
        "time": "2026-11-29T11:45:01.123Z",
    }
    return Facts(**(values | changes))


def record(number: int = 0, change: int = 1, **changes: Any) -> ExportRecord:
    return ExportRecord.of(CLUSTER, facts(number, **changes), change)


def records(count: int) -> tuple[ExportRecord, ...]:
    return tuple(record(number) for number in range(count))
