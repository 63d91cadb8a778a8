"""The demo passes as it is, and fails at the right check when a protection is taken out.

Each case copies the sources, takes one protection out of the copy, and runs the
demo's check against the real programs of that copy.
"""

import compileall
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.demo.checks import CHECKS
from sandbox.demo.output import WIDTH
from sandbox.demo.run import TOTAL
from sandbox.nvml.build import ROOT, build
from tests.fakes.kept_demo import environment
from tests.fakes.process_group import run_group
from tests.hang import HANG_S

PACKAGES = ("agent", "controller", "gpuwarden", "sandbox")
DEMO = ("-m", "sandbox", "demo")
"""As `make demo` runs it: tests/architecture/test_make_help.py."""
RUN_S = HANG_S


@dataclass(frozen=True, slots=True)
class SecurityMutation:
    """One protection taken out: `before` must stand exactly once in `path`."""

    check: str
    path: str
    before: str
    after: str
    needs: tuple[str, ...] = ()
    """Checks that must run, and hold, before this one."""


SECURITY_MUTATIONS = (
    SecurityMutation(
        "inventory", "controller/fleet/view.py", "serial=serial(gpu.serial),", "serial=None,"
    ),
    SecurityMutation(
        "class-hash",
        "gpuwarden/evidence/class_document.py",
        'TAG: Final = "gpuwarden.dev/class/v1"',
        'TAG: Final = "gpuwarden.dev/class/v2"',
    ),
    SecurityMutation(
        "filter",
        "controller/placement/node_verdict.py",
        "if self.accepted is not None and own not in self.accepted:",
        "if not own:",
    ),
    SecurityMutation(
        "malformed-requirement",
        "controller/placement/requirements.py",
        "return PodRequirements(asks=True, needs=RequirementsInvalid(tuple(findings)))",
        "return PodRequirements(asks=True, needs=needs)",
    ),
    SecurityMutation(
        "unmanaged",
        "controller/placement/requirements.py",
        "    managed: bool = False",
        "    managed: bool = True",
    ),
    SecurityMutation(
        "prioritize",
        "controller/placement/filter_and_score.py",
        "return 2 * tight + level_penalty(",
        "return 0 * tight + level_penalty(",
    ),
    SecurityMutation(
        "rotation",
        "agent/session/replicas.py",
        "            svid = self._svids.current()\n            for link",
        "            svid = self._first = getattr(self, '_first', None) or self._svids.current()\n"
        "            for link",
    ),
    SecurityMutation(
        "tampered",
        "gpuwarden/evidence/envelope.py",
        "    key = verifying_key(certificate)\n    message",
        "    return\n    key = verifying_key(certificate)\n    message",
    ),
    SecurityMutation(
        "replay",
        "controller/verifier/challenge.py",
        "if entry.spare_used if spare else entry.answered:",
        "if False:",
    ),
    SecurityMutation(
        "impersonation",
        "controller/verifier/session.py",
        "if hello.node_name != node:",
        "if False:",
    ),
    SecurityMutation(
        "claim",
        "controller/verifier/appraisal.py",
        "contested = contested_claims(question)",
        "contested = ()",
    ),
    SecurityMutation(
        "owner",
        "controller/fleet/registry.py",
        "            *self._apply(refused.node, event),\n",
        "            *self._apply(refused.node, event),\n"
        "            *(c for x in refused.contested for c in self._apply(x.owner, Quarantine(\n"
        "                refused.code, refused.detail, now_ns, wall_ns))),\n",
        needs=("claim",),
    ),
    SecurityMutation(
        "swap",
        "controller/verifier/inventory.py",
        "        *(Refusal(ReasonCode.INVENTORY_CHANGED, x) for x in _changes(question)),\n",
        "",
    ),
    SecurityMutation(
        "way-back",
        "controller/fleet/quarantine.py",
        "    if expected == shown.version:",
        "    if True:",
        needs=("swap",),
    ),
    SecurityMutation(
        "lease",
        "controller/fleet/view.py",
        "if now_ns >= self.acceptance.fresh_until_ns:",
        "if False:",
    ),
    SecurityMutation(
        "log",
        "controller/audit/sealing.py",
        '"prev":"{after.digest}"',
        '"prev":"{after.digest[::-1]}"',
    ),
    SecurityMutation(
        "flip",
        "gpuwarden/audit/chain.py",
        "elif record.prev != self.head.digest:",
        "elif False:",
    ),
)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files: paths of unix sockets below it must be short."""
    folder = Path(tempfile.mkdtemp(prefix="d"))
    yield folder
    shutil.rmtree(folder)


def demo(root: Path, temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_group(
        [sys.executable, *DEMO, *arguments],
        cwd=root,
        env={**environment(temporary), "PYTHONPATH": str(root)},
        timeout=RUN_S,
    )


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, compiled, so that not every run compiles them again."""
    copy = tmp_path_factory.mktemp("compiled")
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
        )
        assert compileall.compile_dir(
            copy / package, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )
    shutil.copytree(build(), copy / "build" / "fake-nvml")
    return copy


def mutated(security_mutation: SecurityMutation, compiled: Path, target: Path) -> None:
    shutil.copytree(compiled, target, dirs_exist_ok=True)
    path = target / security_mutation.path
    text = path.read_text()
    assert text.count(security_mutation.before) == 1, f"{security_mutation.path} has changed"
    path.write_text(text.replace(security_mutation.before, security_mutation.after))


@pytest.mark.timeout(RUN_S + 30)
def test_the_demo_passes(temporary: Path) -> None:
    run = demo(ROOT, temporary)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == f"demo: {TOTAL} of {TOTAL} checks passed"
    assert [x for x in (run.stdout + run.stderr).splitlines() if len(x) > WIDTH] == []
    assert list(temporary.iterdir()) == []


def test_a_lost_check_is_a_failed_demo() -> None:
    assert len(CHECKS) == TOTAL
    assert len({check.name for check in CHECKS}) == TOTAL


def test_each_check_has_a_protection_that_it_shows() -> None:
    assert {security_mutation.check for security_mutation in SECURITY_MUTATIONS} == {
        check.name for check in CHECKS
    }


@pytest.mark.timeout(RUN_S + 30)
@pytest.mark.parametrize("security_mutation", SECURITY_MUTATIONS, ids=lambda w: w.check)
def test_without_its_protection_the_demo_fails_at_that_check(
    security_mutation: SecurityMutation, compiled: Path, tmp_path: Path, temporary: Path
) -> None:
    mutated(security_mutation, compiled, tmp_path)
    chosen = (*security_mutation.needs, security_mutation.check)
    run = demo(tmp_path, temporary, *(f"--only={name}" for name in chosen))
    lines = run.stdout.splitlines()
    failed = [line.split()[2].rstrip(":") for line in lines if "  FAILED  " in line]
    assert failed == [security_mutation.check], run.stdout + run.stderr
    assert run.returncode == 1
    (kept,) = temporary.iterdir()
    assert f"logs are kept in {kept}" in lines
    assert (kept / "log" / "controller.log").stat().st_size > 0
    assert lines[-1] == f"demo: {len(security_mutation.needs)} of {len(chosen)} checks passed"
