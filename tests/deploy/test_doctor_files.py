"""What `gpuwarden doctor` may read is what it reads; its checks pass on what kustomize makes."""

from pathlib import Path
from typing import Any

import yaml

from gpuwarden.doctor.admission import ADMISSION
from gpuwarden.doctor.catalog import INSTALLED
from gpuwarden.doctor.check import Outcome, judge
from gpuwarden.doctor.facts import SYSTEM_NAMESPACE, Right, reading_rights
from tests.builders.doctor_facts import healthy
from tests.deploy.manifests import KUSTOMIZE, rendered

DEPLOY = KUSTOMIZE.parent


def granted() -> set[Right]:
    found: set[Right] = set()
    for document in yaml.safe_load_all((DEPLOY / "doctor/rbac.yaml").read_text()):
        where = SYSTEM_NAMESPACE if document["kind"] == "Role" else ""
        for rule in document.get("rules", ()):
            for verb in rule["verbs"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        names = rule.get("resourceNames", [""])
                        found |= {Right(verb, group, resource, where, name) for name in names}
    return found


def test_what_is_read_is_granted_and_nothing_else() -> None:
    assert granted() == set(reading_rights(SYSTEM_NAMESPACE))


def test_nobody_may_write_or_read_secrets() -> None:
    assert {x.verb for x in granted()} == {"get", "list"}
    assert not [x for x in granted() if x.resource in {"secrets", "*"}]


def test_the_checks_pass_on_what_kustomize_makes(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    up = Path(*[".."] * len(overlay.resolve().parts[1:]))

    def there(name: str) -> str:
        return str(up / (DEPLOY / name).resolve().relative_to("/"))

    document: dict[str, Any] = {
        "resources": [
            there("kustomize/base"),
            there("policy"),
            there("policy/protection"),
            there("scheduler"),
        ],
        "components": [
            there("kustomize/components/extender"),
            there("kustomize/components/admission"),
        ],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(document))
    facts = healthy(tmp_path, rendered(overlay))
    report = judge(INSTALLED, facts)
    bad = [x for _, found in report.groups for x in found if x.verdict.outcome != Outcome.PASSED]
    assert bad == []
    assert ADMISSION.name in {group.name for group, _ in report.groups}
