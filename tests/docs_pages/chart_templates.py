"""The parts of the Helm chart that are copies of other folders of deploy/.

Custom resources, rights and admission policies are long and have nothing to choose: they are
written once, and the chart's templates are made from them. What a chart has to fill in is replaced.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gpuwarden.doctor.admission import SPIRE_NAMESPACES

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
_NAMESPACE: Final = "gpuwarden-system"
_ORIGIN: Final = (
    '{{{{- include "gpuwarden.aliases" . -}}}}\n'
    "{{{{/* Generated from {source} (`make docs`); a test fails when it is out of date. */}}}}\n"
)
_LABELS: Final = re.compile(
    r"  labels:\n    app\.kubernetes\.io/name: gpuwarden\n"
    r"    app\.kubernetes\.io/component: (\S+)\n"
)
_INFRASTRUCTURE: Final = '{{ include "gpuwarden.infrastructure" . }}'
_CRDS: Final = ("nodeenrollments", "gpureservations", "policies")
_POLICIES: Final = ("keys", "devices", "bindings", "enforcement", "rbac")


def custom_resources() -> str:
    """Templates, not files of `crds/`, which Helm never upgrades; kept by an uninstallation."""
    texts = [(DEPLOY / "kustomize/base" / f"{name}.yaml").read_text() for name in _CRDS]
    kept = "  annotations:\n    helm.sh/resource-policy: keep\n"
    found = _labelled("\n---\n".join(text.strip("\n") for text in texts))
    names = re.compile(r"^(metadata:\n  name: \S+\n)", re.MULTILINE)
    return _page("deploy/kustomize/base", names.sub(rf"\g<1>{kept}", found))


def policies() -> str:
    """Those of deploy/policy, and the one of deploy/policy/protection behind its switch."""
    folder = DEPLOY / "policy"
    always = "\n---\n".join((folder / f"{name}.yaml").read_text().strip("\n") for name in _POLICIES)
    protection = (folder / "protection/protection.yaml").read_text().strip("\n")
    body = (
        f"{{{{- if .Values.policies.enabled }}}}\n{_filled(always)}\n"
        f"{{{{- if .Values.protection.enabled }}}}\n---\n{_filled(protection)}\n{{{{- end }}}}\n"
        "{{- end }}"
    )
    return _page("deploy/policy", body)


def rights() -> str:
    """Of controllers, hints, exporters, managed certificates, scheduler, doctor and people."""
    annotated = (
        "  {{- with .Values.controller.serviceAccountAnnotations }}\n  annotations:\n"
        "    {{- toYaml . | nindent 4 }}\n  {{- end }}"
    )
    base = (DEPLOY / "kustomize/base/rbac.yaml").read_text().strip("\n")
    account, rest = _in_its_namespace(base).split("\n---\n", 1)
    component = DEPLOY / "kustomize/components/self-managed-certificates/rbac.yaml"
    parts = {
        ".Values.hints.schedulerUrl": DEPLOY / "kustomize/components/hints/rbac.yaml",
        ".Values.export.exporters": DEPLOY / "kustomize/components/export/rbac.yaml",
        'eq .Values.certificates.mode "self-managed"': component,
        ".Values.scheduler.enabled": DEPLOY / "scheduler/rbac.yaml",
        ".Values.access.enabled": DEPLOY / "kustomize/components/workstation/people.yaml",
    }
    doctor = _in_its_namespace((DEPLOY / "doctor/rbac.yaml").read_text().strip("\n"))
    body = f"{account}\n{annotated}\n---\n{rest}\n---\n{doctor}"
    for condition, file in parts.items():
        text = _in_its_namespace(file.read_text().strip("\n"))
        body += f"\n{{{{- if {condition} }}}}\n---\n{text}\n{{{{- end }}}}"
    return _page("deploy/kustomize, deploy/doctor and deploy/scheduler", body)


def _in_its_namespace(text: str) -> str:
    return _labelled(text).replace(_NAMESPACE, "{{ .Release.Namespace }}")


def _filled(text: str) -> str:
    """What differs from cluster to cluster."""
    reported = '[{{ ternary "Warn, Audit" "Deny" (eq .Values.enforcement "report") }}]'
    names = ("kube-system", "kube-node-lease", *SPIRE_NAMESPACES, _NAMESPACE)
    quoted = str(list(names))
    excluded = f"!(request.namespace in {quoted})"
    registered = f"{{{{ .Values.webhooks.enabled }}}} && !(request.namespace in {_INFRASTRUCTURE})"
    for old, new in (
        (excluded, registered),
        (f'"{quoted}"', '{{ include "gpuwarden.infrastructure" . | quote }}'),
        (f"[{', '.join(names)}]", _INFRASTRUCTURE),
        ("[Deny]", reported),
    ):
        text = text.replace(old, new)
    return _in_its_namespace(text)


def _labelled(text: str) -> str:
    include = '{{{{- include "gpuwarden.labels" (dict "root" $ "component" "{0}") | nindent 4 }}}}'
    found = _LABELS.sub(lambda x: f"  labels:\n    {include.format(x[1])}\n", f"{text}\n")
    return found.removesuffix("\n")


def _page(source: str, body: str) -> str:
    return f"{_ORIGIN.format(source=source)}{body}\n"


def _copy(path: str) -> Callable[[], str]:
    return (DEPLOY / path).read_text


CHART_PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "templates/crds.yaml": custom_resources,
    "templates/policies.yaml": policies,
    "templates/rbac.yaml": rights,
    "files/spire/authorization.rego": _copy("spire/authorization.rego"),
    "files/spire/authorization.json": _copy("spire/authorization.json"),
    **{
        f"files/monitoring/{name}": _copy(f"kustomize/components/monitoring/{folder}{name}")
        for folder, name in (
            ("", "rules.yaml"),
            ("dashboards/", "gpuwarden-fleet-trust.json"),
            ("dashboards/", "gpuwarden-placement.json"),
            ("dashboards/", "gpuwarden-controller.json"),
        )
    },
}
"""Name below deploy/helm/gpuwarden -> what writes it."""
