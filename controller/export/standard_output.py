"""Exporter `stdout`: one line of JSON per record, for whatever collects the container's output.

Logs go to standard error, so that standard output carries records only.
"""

import asyncio
from typing import Final, TextIO

from controller.export.exporter import Batch
from controller.export.failures import Cure, DeliveryError
from controller.export.records import ndjson

NAME: Final = "stdout"


class StandardOutputExporter:
    """Writes to a stream that may block, on a thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def name(self) -> str:
        """`stdout`."""
        return NAME

    @property
    def keeps_batches(self) -> bool:
        """No: a line that was written twice has the same key."""
        return False

    async def send(self, batch: Batch) -> None:
        """Write and flush; raises DeliveryError."""
        try:
            await asyncio.to_thread(self._write, ndjson(batch.records).decode())
        except OSError as error:
            raise DeliveryError(f"standard output: {error.strerror}", Cure.TIME) from None

    async def check(self) -> None:
        """There is nothing to ask."""

    async def close(self) -> None:
        """It is the process's own."""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
