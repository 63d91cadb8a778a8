"""One fuzz target under atheris: `python -m tests.fuzz.run TARGET FOLDER --seconds 60`.

New inputs that reach new code are kept in FOLDER, and an input that breaks the target as
`FOLDER/crash-…`; the exit code is not 0 then. `--runs` gives a run of that many inputs, the
same each time.
"""

import argparse
import importlib
import sys
from pathlib import Path

from tests.fuzz.seeds import CORPUS

MAX_INPUT = 8192


def main() -> None:
    """Fuzz; does not return."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--seconds", type=int)
    amount.add_argument("--runs", type=int)
    chosen = parser.parse_args()
    try:
        atheris = importlib.import_module("atheris")
    except ModuleNotFoundError:
        parser.error("atheris has no wheel for this platform; `make test` mutates by Hypothesis")
    forgotten = [x for x in sys.modules if x.partition(".")[0] in {"gpuwarden", "controller"}]
    for name in (*forgotten, *(x for x in sys.modules.copy() if x.startswith("tests."))):
        sys.modules.pop(name, None)  # imported again below, with what counts branches
    with atheris.instrument_imports(include=["gpuwarden", "controller"]):
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    chosen.folder.mkdir(parents=True, exist_ok=True)
    limit = f"-max_total_time={chosen.seconds}" if chosen.seconds else f"-runs={chosen.runs}"
    options = [f"-max_len={MAX_INPUT}", "-seed=1", "-timeout=60", "-rss_limit_mb=2048"]
    places = [f"-artifact_prefix={chosen.folder}/", str(chosen.folder), str(CORPUS / chosen.target)]
    atheris.Setup([sys.argv[0], limit, *options, *places], targets[chosen.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
