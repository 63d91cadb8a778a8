"""Every page and place in a page that a check of `gpuwarden doctor` names is there."""

import pytest

from gpuwarden.doctor.catalog import INSTALLED, NOT_YET
from gpuwarden.doctor.check import Check
from tests.docs_pages.site import ROOT, anchors

CHECKS = {one.id: one for group in (*INSTALLED, *NOT_YET) for one in group.checks}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_what_a_check_names_is_there(check: Check) -> None:
    for reference in filter(None, (check.page, check.more and f"docs/{check.more}")):
        page, _, anchor = reference.partition("#")
        assert (ROOT / page).is_file()
        assert not anchor or anchor in anchors((ROOT / page).read_text()), reference


@pytest.mark.parametrize("check", ["pod-mutated", "pod-refused"])
def test_a_check_that_creates_a_pod_leads_to_what_is_said_of_creation(check: str) -> None:
    assert CHECKS[check].more == "troubleshooting.md#a-pod-is-not-created"
