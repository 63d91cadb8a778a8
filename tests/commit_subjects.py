"""Checks the subjects of commits: `python -m tests.commit_subjects`.

A subject is `area: what`, imperative, at most 72 characters. Looks at the commits since the last
release tag (`v…`), or at HEAD alone where there is none. Merges are left out. Where there is no
history (no git, a tarball, a foreign repository around it) nothing is checked.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MAX_CHARS: Final = 72
_AREA: Final = re.compile(r"[a-z0-9][a-z0-9/_.-]*(?:, [a-z0-9][a-z0-9/_.-]*)*: ")
_NO_VERB: Final = re.compile(
    r"an?|the|this|that|these|those|each|every|all|one|two|no|not|it|there"
    r"|what|which|who|how|when|where|why|if|in|on|of|for|from|with"
)
_VERBS_IN_S: Final = frozenset({"alias", "bias", "focus"})
_VERBS_IN_ED: Final = frozenset({"embed", "shed"})
_VERBS_IN_ING: Final = frozenset({"bring", "ping", "ring", "string"})


def fault(subject: str) -> str | None:
    """What is wrong with a subject; None where a machine finds nothing."""
    area = _AREA.match(subject)
    if len(subject) > MAX_CHARS:
        return f"{len(subject)} characters, expected at most {MAX_CHARS}"
    if subject.endswith("."):
        return "ends with a full stop"
    if area is None:
        return "expected `area: what`, the area in lower case"
    return _fault_of_verb(subject[area.end() :].partition(" ")[0])


def _fault_of_verb(word: str) -> str | None:
    if not word.isascii() or not word.replace("-", "").isalpha() or not word.islower():
        return f"expected a verb in lower case after the area, found {word!r}"
    declined = (
        (word.endswith("s") and not word.endswith("ss") and word not in _VERBS_IN_S)
        or (word.endswith("ed") and not word.endswith("eed") and word not in _VERBS_IN_ED)
        or (word.endswith("ing") and word not in _VERBS_IN_ING)
    )
    if declined or _NO_VERB.fullmatch(word):
        return f"expected an imperative verb after the area, as in `add`, found {word!r}"
    return None


def subjects(root: Path) -> list[str]:
    """Subjects of the commits to check, newest first; empty where there is no history."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return []
    tag = _git(root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD")
    commits = ("-1", "HEAD") if tag is None else (f"{tag}..HEAD",)
    return (_git(root, "log", "--no-merges", "--format=%s", *commits) or "").splitlines()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],  # noqa: S607 - whichever git there is
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Print each fault; the exit status is 1 if there is one."""
    found = subjects(ROOT)
    faults = [(subject, text) for subject in found if (text := fault(subject)) is not None]
    for subject, text in faults:
        sys.stderr.write(f"commit subject: {text}\n  {subject}\n")
    sys.stdout.write(f"commit subjects: {len(found)} checked, {len(faults)} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
