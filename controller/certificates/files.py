"""Leaves as files, for listeners that follow theirs. Reads and writes a few kilobytes, blocking."""

from pathlib import Path

from controller.certificates.material import Leaf, leaf_entries
from gpuwarden.regular_file import open_new, private_folder


class CertificateFiles:
    """A folder with a folder for each listener: `tls.crt`, `tls.key` and `ca.crt`, mode 0600.

    Nobody in this process sees a part of a change: reading and writing take turns on the event
    loop. What a crash leaves half done is written again before anybody reads it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, Leaf] = {}

    def write(self, name: str, leaf: Leaf) -> bool:
        """Whether the files were others before; raises OSError."""
        if self._written.get(name) == leaf:
            return False
        folder = self._folder / name
        private_folder(self._folder)
        private_folder(folder)
        for entry, content in leaf_entries(leaf).items():
            new = folder / f".{entry}.new"
            with open_new(new) as file:
                file.write(content)
            new.replace(folder / entry)
        self._written[name] = leaf
        return True

    def has(self, name: str) -> bool:
        """Whether this process has written them."""
        return name in self._written
