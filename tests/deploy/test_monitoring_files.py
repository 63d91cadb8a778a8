"""Alerts, monitors and dashboards: what they name exists, alerts fire, runbooks are there."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from gpuwarden.telemetry.every_metric import METRICS
from gpuwarden.telemetry.names import MetricType
from tests.deploy.manifests import BASE, KUSTOMIZE, container_of, one, rendered
from tests.deploy.test_admission_files import overlay

MONITORING: Final = KUSTOMIZE / "components" / "monitoring"
DOCS: Final = KUSTOMIZE.parents[1] / "docs"
DASHBOARDS: Final = sorted((MONITORING / "dashboards").glob("*.json"))
TYPES: Final = {x.name: x.type for x in METRICS}
LABELS: Final = {x.name: {*x.labels, "instance", "job"} for x in METRICS}
OF_LIBRARIES: Final = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
OF_DCGM: Final = {"DCGM_FI_DEV_GPU_UTIL"}
Rule = Mapping[str, Any]


def rules() -> list[Rule]:
    (group,) = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    found: list[Rule] = group["rules"]
    return found


def queries(dashboard: Path) -> Iterator[tuple[str, str]]:
    """Title of the panel, and its query."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


EXPRESSIONS: Final = [
    *((x["alert"], x["expr"]) for x in rules()),
    *(x for path in DASHBOARDS for x in queries(path)),
]


# --- what is asked for exists


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[x for x, _ in EXPRESSIONS])
def test_metrics_exist_with_the_labels_that_they_are_asked_by(where: str, expression: str) -> None:
    assert where
    found = re.findall(r"\b((?:gpuwarden|process|DCGM)_\w+)(?:\{([^}]*)\})?", expression)
    assert found
    for name, matchers in found:
        if name in OF_LIBRARIES | OF_DCGM:
            continue
        base = re.sub(r"_(bucket|count|sum)$", "", name) if name not in TYPES else name
        assert base in TYPES, name
        asked = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers))
        assert asked <= LABELS[base], (name, matchers)
    for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        known = {label for name, _ in found for label in LABELS.get(_base(name), {"UUID"})}
        assert {x.strip() for x in by.split(",")} <= known | {"le", "python", "version"}, by


def _base(name: str) -> str:
    return name if name in TYPES else re.sub(r"_(bucket|count|sum)$", "", name)


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[x for x, _ in EXPRESSIONS])
def test_rates_are_taken_of_counters(where: str, expression: str) -> None:
    assert where
    for name in re.findall(r"\b(?:rate|increase)\((\w+)", expression):
        counts = TYPES.get(_base(name), MetricType.COUNTER)
        assert counts is not MetricType.GAUGE, name


def test_every_severity_is_one_that_the_runbooks_explain() -> None:
    text = (DOCS / "runbooks.md").read_text()
    for rule in rules():
        assert f"`{rule['labels']['severity']}`" in text


def test_what_leaves_no_controller_ready_after_five_minutes_is_critical() -> None:
    severities = {x["alert"]: x["labels"]["severity"] for x in rules()}
    assert severities["GpuwardenSpireUnavailable"] == "critical"  # spire.grace


def test_every_runbook_url_is_a_section_of_its_page_and_every_section_an_alert() -> None:
    headings = re.findall(r"^## (\S+)$", (DOCS / "runbooks.md").read_text(), re.MULTILINE)
    assert [x["alert"] for x in rules()] == headings
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert DOCS.parent / page == DOCS / "runbooks.md"
        assert anchor == rule["alert"].lower()


def test_dashboards_can_be_imported_beside_each_other() -> None:
    found = [json.loads(x.read_text()) for x in DASHBOARDS]
    assert [x["uid"] for x in found] == [x.stem for x in DASHBOARDS]
    assert len({x["title"] for x in found}) == 3
    for dashboard in found:
        assert dashboard["schemaVersion"] >= 36  # since then a data source is named by its uid
        (variable,) = dashboard["templating"]["list"]
        wanted = ("datasource", "datasource", "prometheus")
        assert (variable["name"], variable["type"], variable["query"]) == wanted
        ids = [x["id"] for x in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in dashboard["panels"]:
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["title"]
            assert panel["description"].endswith(".") or "`" in panel["description"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert {x["datasource"]["uid"] for x in panel["targets"]} == {"${datasource}"}
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24


def test_the_page_says_how_many_alerts_there_are() -> None:
    assert f"has {len(rules())} alerts" in (DOCS / "monitoring.md").read_text()


# --- alerts fire, and not without cause


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here (Debian: prometheus)")
    return found


C: Final = 'instance="c0",job="gpuwarden-controller"'
HEALTHY: Final = (
    f"gpuwarden_build_info{{{C}}} 1",
    f"gpuwarden_ready{{{C}}} 1",
    'gpuwarden_ready{instance="a0",job="gpuwarden-agent"} 0',
    f'gpuwarden_nodes{{{C},state="eligible"}} 8',
    f'gpuwarden_nodes{{{C},state="unknown"}} 2',
    f'gpuwarden_nodes{{{C},state="quarantined"}} 0',
    f'gpuwarden_nodes{{{C},state="stale"}} 0',
    f"gpuwarden_nodes_quarantined{{{C}}} 0",
    f"gpuwarden_audit_available{{{C}}} 1",
    f"gpuwarden_audit_records_lost_total{{{C}}} 3",
    f'gpuwarden_audit_witness_alarms{{{C},code="LOG_RESET"}} 0',
    'gpuwarden_agent_log_alarms{instance="a0",code="LOG_RESET"} 0',
    f'gpuwarden_evidence_total{{{C},code="ACCEPTED"}} 0+9',
    f'gpuwarden_evidence_total{{{C},code="SIG_INVALID"}} 4',
    'gpuwarden_agent_stream_ends_total{instance="a0",cause="peer"} 0+9',
    f'gpuwarden_client_certificate_expires_seconds{{{C},listener="admission"}} 9000000',
    f'gpuwarden_client_certificate_expires_seconds{{{C},listener="extender"}} NaN',
    f'gpuwarden_serving_certificate_expires_seconds{{{C},listener="admission"}} 9000000',
    f'gpuwarden_managed_certificate_expires_seconds{{{C},certificate="scheduler"}} NaN',
    f"gpuwarden_spire_available{{{C}}} 0",
    f"gpuwarden_store_available{{{C}}} 1",
    f"gpuwarden_ledger_available{{{C}}} NaN",
    f"gpuwarden_ledger_rollbacks_total{{{C}}} 1",
    f'gpuwarden_reservation_drift{{{C},kind="pod_alive"}} 7',
    f'gpuwarden_gpu_use_faults{{{C},kind="unreserved_use"}} 0',
    f"gpuwarden_idle_gpus{{{C}}} 2",
    f'gpuwarden_reservations{{{C},state="Confirmed"}} 10',
    f"gpuwarden_reservation_releasing_oldest_seconds{{{C}}} 900",
    f"gpuwarden_bindings_never_stored{{{C}}} 0",
    f'gpuwarden_bind_decisions_total{{{C},code="NODE_STALE",decision="refused"}} 0+9',
    f'gpuwarden_bind_decisions_total{{{C},code="BYPASS_PRIVILEGED",decision="reported"}} 0+9',
    f'gpuwarden_bind_decisions_total{{{C},code="BINDING_FORGED",decision="reported"}} _x119 1',
    f'gpuwarden_admission_requests_total{{{C},path="/mutate",result="patched"}} 0+9',
    f'gpuwarden_kube_age_seconds{{{C},resource="pods"}} 120',
    'gpuwarden_svid_expires_seconds{instance="a0"} 600',
    f'gpuwarden_tls_handshake_failures_total{{{C},listener="admission",cause="x"}} 0+9',
    f'gpuwarden_tls_handshakes_completed_total{{{C},listener="admission"}} 0+9',
    'gpuwarden_agent_dial_failures_total{instance="a0",cause="unreachable"} 0+6',
    'gpuwarden_agent_nvml_available{instance="a0"} 1',
    'gpuwarden_agent_gpus_lost{instance="a0"} 0',
    'gpuwarden_agent_challenges_missed_total{instance="a0"} 7',
    f"gpuwarden_clock_suspect{{{C}}} 0",
    f'gpuwarden_policy_reloads_total{{{C},result="taken"}} 0+1',
    f'gpuwarden_export_healthy{{{C},exporter="s3"}} 1',
    f'gpuwarden_export_dead_letter_records{{{C},exporter="s3"}} 0',
    f'gpuwarden_hint_scorer_available{{{C},path="/v1/score"}} 1',
    f'gpuwarden_hint_runs_total{{{C},result="reported"}} 0+1',
    f'gpuwarden_hint_runs_total{{{C},result="lost"}} 3',
    f"gpuwarden_hint_runs_unsaved{{{C}}} 0",
    'gpuwarden_score_store_available{instance="s0"} 1',
    'gpuwarden_score_unsaved_rows{instance="s0"} 0',
    f'gpuwarden_reservation_release_seconds_bucket{{{C},le="5.0"}} 0+60',
    f'gpuwarden_reservation_release_seconds_bucket{{{C},le="+Inf"}} 0+60',
    f'gpuwarden_extender_request_seconds_bucket{{{C},verb="filter",le="0.5"}} 0+60',
    f'gpuwarden_extender_request_seconds_bucket{{{C},verb="filter",le="+Inf"}} 0+60',
)
"""Series as `NAME{LABELS} VALUE`, or the begin and step of a counter; at the edge of being ill."""

BORN: Final = "_x119 1"
"""A counter that has no series for two hours, and then begins with 1."""
CASES: Final[Mapping[str, tuple[Sequence[str], Mapping[str, str]]]] = {
    "GpuwardenControllersAbsent": (
        ('gpuwarden_build_info{job="gpuwarden-agent"} 1',),
        {"job": "gpuwarden-controller"},
    ),
    "GpuwardenControllersNotReady": ((f"gpuwarden_ready{{{C}}} 0",), {}),
    "GpuwardenFleetNotEligible": (
        (
            f'gpuwarden_nodes{{{C},state="eligible"}} 7',
            f'gpuwarden_nodes{{{C},state="unknown"}} 2',
        ),
        {},
    ),
    "GpuwardenAuditLogUnavailable": ((f"gpuwarden_audit_available{{{C}}} 0",), {}),
    "GpuwardenAuditRecordsLost": (
        (f"gpuwarden_audit_records_lost_total{{{C}}} 0+1",),
        {"instance": "c0", "job": "gpuwarden-controller"},
    ),
    "GpuwardenAuditLogChanged": (
        ('gpuwarden_agent_log_alarms{instance="a0",code="LOG_RESET"} 1',),
        {},
    ),
    "GpuwardenEvidenceForged": (
        (f'gpuwarden_evidence_total{{{C},code="SIG_INVALID"}} {BORN}',),
        {"code": "SIG_INVALID"},
    ),
    "GpuwardenControllerImpersonated": (
        (f'gpuwarden_agent_stream_ends_total{{instance="a0",cause="unproven"}} {BORN}',),
        {"instance": "a0"},
    ),
    "GpuwardenApiServerCertificateEnds": (
        (f'gpuwarden_client_certificate_expires_seconds{{{C},listener="admission"}} 259199',),
        {},
    ),
    "GpuwardenNodesQuarantined": ((f"gpuwarden_nodes_quarantined{{{C}}} 1",), {}),
    "GpuwardenNodesLostTrust": ((f'gpuwarden_nodes{{{C},state="refused"}} 1',), {}),
    "GpuwardenSpireUnavailable": (
        (
            f"gpuwarden_spire_available{{{C}}} 0",
            f'gpuwarden_spire_polls_total{{{C},result="taken"}} 1',
        ),
        {"instance": "c0", "job": "gpuwarden-controller"},
    ),
    "GpuwardenStoreUnavailable": ((f"gpuwarden_store_available{{{C}}} 0",), {}),
    "GpuwardenLedgerUnavailable": ((f"gpuwarden_ledger_available{{{C}}} 0",), {}),
    "GpuwardenLedgerRolledBack": (
        (f'gpuwarden_quarantine_entries_total{{{C},fate="lost"}} {BORN}',),
        {},
    ),
    "GpuwardenLedgerDrift": (
        (f'gpuwarden_reservation_drift{{{C},kind="orphan"}} 1',),
        {"kind": "orphan"},
    ),
    "GpuwardenGpuMismatch": (
        (f'gpuwarden_gpu_use_faults{{{C},kind="other_gpu"}} 1',),
        {"kind": "other_gpu"},
    ),
    "GpuwardenUnreservedUse": ((f'gpuwarden_gpu_use_faults{{{C},kind="unreserved_use"}} 1',), {}),
    "GpuwardenReservedGpusIdle": (
        (f"gpuwarden_idle_gpus{{{C}}} 3", f'gpuwarden_reservations{{{C},state="Confirmed"}} 14'),
        {},
    ),
    "GpuwardenReleaseSlow": (
        (
            f'gpuwarden_reservation_release_seconds_bucket{{{C},le="5.0"}} 0+58',
            f'gpuwarden_reservation_release_seconds_bucket{{{C},le="15.0"}} 0+60',
            f'gpuwarden_reservation_release_seconds_bucket{{{C},le="+Inf"}} 0+60',
        ),
        {},
    ),
    "GpuwardenGpusStayTaken": (
        (
            f"gpuwarden_reservation_releasing_oldest_seconds{{{C}}} 0+60",
            'gpuwarden_reservation_releasing_oldest_seconds{instance="c1"} 0',
        ),
        {},
    ),
    "GpuwardenBindingsNeverStored": ((f"gpuwarden_bindings_never_stored{{{C}}} 1",), {}),
    "GpuwardenBypassAttempts": (
        (f'gpuwarden_bind_decisions_total{{{C},code="BYPASS_ENV",decision="refused"}} {BORN}',),
        {"code": "BYPASS_ENV"},
    ),
    "GpuwardenWebhookFails": (
        (f'gpuwarden_admission_requests_total{{{C},path="/mutate",result="failed"}} {BORN}',),
        {"path": "/mutate"},
    ),
    "GpuwardenExtenderSlow": (
        (
            f'gpuwarden_extender_request_seconds_bucket{{{C},verb="filter",le="0.5"}} 0+58',
            f'gpuwarden_extender_request_seconds_bucket{{{C},verb="filter",le="1.0"}} 0+60',
            f'gpuwarden_extender_request_seconds_bucket{{{C},verb="filter",le="+Inf"}} 0+60',
        ),
        {},
    ),
    "GpuwardenKubernetesApiSilent": (
        (f'gpuwarden_kube_age_seconds{{{C},resource="pods"}} 121',),
        {"resource": "pods"},
    ),
    "GpuwardenCertificateEnds": (
        (f'gpuwarden_managed_certificate_expires_seconds{{{C},certificate="api"}} 863999',),
        {"certificate": "api"},
    ),
    "GpuwardenSvidEnds": (
        ('gpuwarden_svid_expires_seconds{instance="a0"} 599',),
        {"instance": "a0"},
    ),
    "GpuwardenTlsHandshakesFail": (
        (
            'gpuwarden_tls_handshake_failures_total{instance="c0",listener="extender"} 0+1',
            'gpuwarden_tls_handshakes_completed_total{instance="c0",listener="extender"} 7',
            'gpuwarden_tls_handshakes_completed_total{instance="c0",listener="admission"} 0+1',
        ),
        {"instance": "c0", "listener": "extender"},
    ),
    "GpuwardenAgentsCannotConnect": (
        ('gpuwarden_agent_dial_failures_total{instance="a0",cause="unreachable"} 0+7',),
        {"cause": "unreachable"},
    ),
    "GpuwardenDriverUnavailable": (
        ('gpuwarden_agent_nvml_available{instance="a0"} 0',),
        {"instance": "a0"},
    ),
    "GpuwardenGpuLost": (('gpuwarden_agent_gpus_lost{instance="a0"} 1',), {"instance": "a0"}),
    "GpuwardenChallengesMissed": (
        ('gpuwarden_agent_challenges_missed_total{instance="a0"} 0+1',),
        {"instance": "a0"},
    ),
    "GpuwardenClockSuspect": ((f"gpuwarden_clock_suspect{{{C}}} 1",), {"instance": "c0"}),
    "GpuwardenPolicyRefused": (
        (f'gpuwarden_policy_reloads_total{{{C},result="refused"}} {BORN}',),
        {"instance": "c0"},
    ),
    "GpuwardenExportFails": (
        (
            f'gpuwarden_export_healthy{{{C},exporter="s3"}} 0',
            'gpuwarden_export_healthy{instance="c1",exporter="s3"} 1',
            f'gpuwarden_export_healthy{{{C},exporter="postgres"}} 1',
        ),
        {"exporter": "s3"},
    ),
    "GpuwardenExportDeadLetters": (
        (
            f'gpuwarden_export_dead_letter_records{{{C},exporter="s3"}} 1',
            'gpuwarden_export_dead_letter_records{instance="c1",exporter="s3"} 0',
        ),
        {"exporter": "s3", "instance": "c0", "job": "gpuwarden-controller"},
    ),
    "GpuwardenScorerUnavailable": (
        (
            f'gpuwarden_hint_scorer_available{{{C},path="/v1/score"}} 0',
            'gpuwarden_hint_scorer_available{instance="c1",path="/v1/score"} 1',
        ),
        {"path": "/v1/score"},
    ),
    "GpuwardenScoresUnsaved": ((f"gpuwarden_hint_runs_unsaved{{{C}}} 1",), {}),
    "GpuwardenHintRunsLost": (
        (f'gpuwarden_hint_runs_total{{{C},result="lost"}} {BORN}',),
        {},
    ),
}
"""Alert -> series that make it fire, and the labels that it then has beside its own."""
MINUTES: Final = 120


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == [x["alert"] for x in rules()]


def test_alerts_fire_for_their_cause_and_not_in_health(promtool: str, tmp_path: Path) -> None:
    spec = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    names = {x["alert"]: x for x in rules()}
    cases = [
        _case(HEALTHY, [{"eval_time": f"{MINUTES}m", "alertname": x} for x in names]),
        *(_case(series, [_fires(names[x], labels)]) for x, (series, labels) in CASES.items()),
    ]
    file = {"rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(file))
    for command in (("check", "rules", "rules.yaml"), ("test", "rules", "tests.yaml")):
        ran = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def _case(series: Sequence[str], expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": _values(*values)}
            for name, *values in (x.rsplit(" ", x.count(" ")) for x in series)
        ],
        "alert_rule_test": expected,
    }


def _values(*values: str) -> str:
    """A constant, a counter by its step, or as promtool has it."""
    text = " ".join(values)
    return text if text == BORN else f"{text}x{MINUTES}" if "+" in text else f"{text}+0x{MINUTES}"


def _fires(rule: Rule, labels: Mapping[str, str]) -> dict[str, Any]:
    def filled(text: str) -> str:
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)

    alert = {
        "exp_labels": {**rule["labels"], **labels},
        "exp_annotations": {key: filled(text) for key, text in rule["annotations"].items()},
    }
    return {"eval_time": f"{MINUTES}m", "alertname": rule["alert"], "exp_alerts": [alert]}


# --- the component


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return rendered(overlay(tmp_path_factory.mktemp("monitoring"), MONITORING))


def test_monitors_scrape_the_ports_of_agents_and_controllers(made: list[dict[str, Any]]) -> None:
    monitor = one(made, "ServiceMonitor", "gpuwarden-controller")["spec"]
    service = one(made, "Service", "gpuwarden-controller-metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    others = [x for x in made if x["kind"] == "Service" and x is not service]
    wanted = monitor["selector"]["matchLabels"].items()
    assert not [x for x in others if wanted <= x["metadata"].get("labels", {}).items()]
    assert service["spec"]["publishNotReadyAddresses"] is True
    pods = one(made, "StatefulSet", "gpuwarden-controller")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert port["name"] == port["targetPort"] == "ops"
    assert [(x["port"], x["path"]) for x in monitor["endpoints"]] == [
        ("ops", "/metrics"),
        ("ops", "/metrics/fleet"),
    ]
    agents = one(made, "PodMonitor", "gpuwarden-agent")["spec"]
    agent = one(made, "DaemonSet", "gpuwarden-agent")["spec"]["template"]
    assert agents["selector"]["matchLabels"].items() <= agent["metadata"]["labels"].items()
    assert [x["port"] for x in agents["podMetricsEndpoints"]] == ["ops"]
    for template in (pods, agent):
        (container, *_) = template["spec"]["containers"]
        assert 9090 in {x["containerPort"] for x in container["ports"] if x["name"] == "ops"}


def test_the_scorer_is_scraped_where_nobody_can_teach_it(
    made: list[dict[str, Any]], tmp_path: Path
) -> None:
    monitor = one(made, "ServiceMonitor", "gpuwarden-score")["spec"]
    components = [KUSTOMIZE / "components" / x for x in ("admission", "hints", "scorer")]
    found = rendered(overlay(tmp_path, MONITORING, *components))
    services = [x for x in found if x["kind"] == "Service"]
    wanted = monitor["selector"]["matchLabels"].items()
    (service,) = [x for x in services if wanted <= x["metadata"].get("labels", {}).items()]
    assert service["metadata"]["name"] == "gpuwarden-score"
    (endpoint,) = monitor["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("ops", "/metrics")
    assert endpoint["relabelings"][0]["replacement"] == "gpuwarden-score"
    pod = one(found, "StatefulSet", "gpuwarden-score")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {
        x["name"]: x["containerPort"] for x in container_of({"spec": {"template": pod}})["ports"]
    }
    assert {x["name"]: x["port"] for x in service["spec"]["ports"]} == ports
    assert ports == {"http": 8080, "ops": 9090}


def test_jobs_are_those_that_alerts_and_dashboards_ask_for(made: list[dict[str, Any]]) -> None:
    endpoints = [
        *one(made, "ServiceMonitor", "gpuwarden-controller")["spec"]["endpoints"],
        *one(made, "PodMonitor", "gpuwarden-agent")["spec"]["podMetricsEndpoints"],
    ]
    jobs = {x["relabelings"][0]["replacement"] for x in endpoints}
    asked = {x for _, text in EXPRESSIONS for x in re.findall(r'job="([^"]*)"', text)}
    assert asked
    assert asked <= jobs


def test_the_component_shows_the_fleet_and_the_base_does_not(made: list[dict[str, Any]]) -> None:
    file = BASE / "config" / "controller.yaml"
    shown = []
    for found in (made, rendered(BASE)):
        container = container_of(one(found, "StatefulSet", "gpuwarden-controller"))
        known = {x["name"]: x["value"] for x in container["env"] if "value" in x}
        loaded = load(CONTROLLER, Inputs((), known, (str(file), file.read_bytes())))
        shown.append(loaded.settings.metrics.fleet)
    assert shown == [True, False]


def test_dashboards_are_in_a_configmap_that_grafana_finds(made: list[dict[str, Any]]) -> None:
    found = one(made, "ConfigMap", "gpuwarden-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {x.name: x.read_text() for x in DASHBOARDS}
