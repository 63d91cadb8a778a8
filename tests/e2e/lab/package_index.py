"""Where pip gets packages on this machine, so that a build inside a container does the same."""

import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterable, Mapping

_WANTED = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "cert": "PIP_CERT",
}


def machine_index() -> Mapping[str, str]:
    """pip's variables; empty where pip is not configured."""
    pip = (sys.executable, "-m", "pip", "config", "list")
    done = subprocess.run(pip, capture_output=True, text=True, timeout=60, check=True)
    return index_variables(done.stdout.splitlines())


def index_variables(lines: Iterable[str]) -> Mapping[str, str]:
    """From lines such as `global.cert='/etc/ssl/ca.pem'`; the environment's win."""
    found = {}
    for line in sorted(lines, key=lambda x: x.startswith(":env:.")):
        name, _, value = line.partition("=")
        variable = _WANTED.get(name.rpartition(".")[2])
        if variable is not None:
            found[variable] = str(literal_eval(value))
    return found
