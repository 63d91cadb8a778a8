"""Small texts that outlive a process and say how far exporters are; and such texts in a folder.

Where there is a cluster they are ConfigMaps, so that a replica that takes over reads them.
"""

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuwarden.regular_file import open_new, open_to_read, private_folder


class DocumentsUnavailableError(Exception):
    """They cannot be read or written now."""


class DocumentChangedError(Exception):
    """Somebody else has written it since it was read: another replica exports."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text as it was read."""

    text: str
    version: str


class Documents(Protocol):
    """Keeps texts by name."""

    async def read(self, name: str) -> Document | None:
        """The text; None where there is none. Raises DocumentsUnavailableError."""

    async def write(self, name: str, text: str, version: str | None) -> str:
        """Write in place of that version, or for the first time; returns the new version.

        Raises DocumentsUnavailableError or DocumentChangedError.
        """


class FolderDocuments:
    """Documents as files: for a controller without the Kubernetes API, which has no replicas."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, name: str) -> Document | None:
        """The file's text, if it is there."""
        return await asyncio.to_thread(self._read, name)

    async def write(self, name: str, text: str, version: str | None) -> str:
        """Put the file in place of the old one, whole."""
        return await asyncio.to_thread(self._write, name, text, version)

    def _read(self, name: str) -> Document | None:
        try:
            with open_to_read(self._path(name)) as file:
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DocumentsUnavailableError(f"{error.strerror}: {self._path(name)}") from None
        return Document(data.decode(errors="replace"), _version(data))

    def _write(self, name: str, text: str, version: str | None) -> str:
        found = self._read(name)
        if (None if found is None else found.version) != version:
            raise DocumentChangedError(name)
        data = text.encode()
        path = self._path(name)
        new = path.with_suffix(".new")
        try:
            private_folder(self._folder)
            with open_new(new) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            raise DocumentsUnavailableError(f"{error.strerror}: {path}") from None
        return _version(data)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
