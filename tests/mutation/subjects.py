"""Which sources are mutated, and which tests stand for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Subject:
    """A package and the tests at the lowest level that must notice a change in it."""

    package: str
    tests: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """Those of the package that are mutated; all without."""

    def sources(self, root: Path, only: Sequence[str] = ()) -> list[str]:
        """Paths of its sources below `root`; those that lie in one of `only`, if anything does."""
        names = [f"{x}.py" for x in self.modules] or ["*.py"]
        paths = [path for name in names for path in (root / self.package).rglob(name)]
        found = sorted(str(path.relative_to(root)) for path in paths)
        return [x for x in found if not only or any(x.startswith(part) for part in only)]


SUBJECTS: Final = (
    Subject(
        "controller/verifier",
        (
            "tests/unit/controller/verifier",
            "tests/property/test_verifier_properties.py",
            "tests/property/test_lost_gpus.py",
        ),
    ),
    Subject(
        "gpuwarden/evidence",
        (
            "tests/unit/gpuwarden/evidence",
            "tests/property/test_evidence_properties.py",
            "tests/property/test_strict_json_fast_path.py",
        ),
    ),
    Subject(
        "gpuwarden/identity",
        (
            "tests/unit/gpuwarden/identity",
            "tests/contracts/test_spiffe_workload_api.py",
            "tests/integration/test_server_credentials_tls.py",
            "tests/integration/test_tunnel.py",
        ),
    ),
    Subject(
        "gpuwarden/audit",
        (
            "tests/unit/gpuwarden/audit",
            "tests/unit/gpuwarden/cli/commands/test_audit.py",
            "tests/unit/gpuwarden/cli/commands/test_reverify.py",
            "tests/property/test_audit_chain.py",
            "tests/property/test_merkle_properties.py",
            "tests/architecture/test_docs_pages.py",
        ),
    ),
    Subject("controller/audit", ("tests/unit/controller/audit",)),
    Subject(
        "controller/ledger",
        (
            "tests/unit/controller/ledger",
            "tests/unit/controller/binding",
            "tests/property/test_ledger_machine.py",
        ),
    ),
    Subject(
        "controller/binding",
        ("tests/unit/controller/binding",),
        modules=("asked_rounds", "decision", "reconciliation", "records", "request", "use"),
    ),
    Subject("controller/admission", ("tests/unit/controller/admission",)),
)
