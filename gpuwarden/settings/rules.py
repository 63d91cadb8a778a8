"""Rules between keys, beyond what each key's kind can say. Pure."""

from itertools import combinations

from gpuwarden.counted import counted
from gpuwarden.finding import Finding
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.settings.agent import AgentSettings
from gpuwarden.settings.controller import (
    ControllerSettings,
    KubernetesUse,
    PolicyOrigin,
    Scheduling,
    StoreKind,
)
from gpuwarden.settings.database import PostgresDatabase
from gpuwarden.settings.score import ScoreSettings
from gpuwarden.settings.values import Address, Duration


def agent_rules(settings: AgentSettings) -> list[Finding]:
    """Return what does not fit together in an agent's settings."""
    findings = [
        Finding("agent.controllers", str(address), "a port from 1 to 65535 and a host")
        for address in settings.agent.controllers
        if address.port == 0 or not address.host
    ]
    if parse_spiffe_id(settings.controller_id).trust_domain != settings.trust_domain:
        expected = f"an identity in the trust domain {settings.trust_domain}"
        findings.append(Finding("agent.controllerId", settings.controller_id, expected))
    return findings


def controller_rules(settings: ControllerSettings) -> list[Finding]:
    """Return what does not fit together in a controller's settings."""
    return [
        *_lease(settings),
        *_clock(settings),
        *_extender(settings),
        *_admission(settings),
        *_hints(settings),
        *_api(settings),
        *_access(settings),
        *_self_managed(settings),
        *_static_hashes(settings),
        *_listeners(settings),
        *_kubernetes(settings),
        *_store(settings),
        *_policy(settings),
        *_export(settings),
        *_telemetry(settings),
    ]


def score_rules(settings: ScoreSettings) -> list[Finding]:
    """Return what does not fit together in a scoring service's settings."""
    is_server = isinstance(settings.database, PostgresDatabase)
    if not is_server or settings.database_password is not None:
        return []
    expected = "a password with database: postgresql://…, best in a file (databasePasswordFile)"
    return [Finding("databasePassword", "nothing", expected)]


def _lease(settings: ControllerSettings) -> list[Finding]:
    times = settings.attestation
    shortest = Duration(2 * times.interval.ns + times.challenge_ttl.ns)
    if shortest <= times.lease:
        return []
    expected = (
        f"at least 2 x attestation.interval + attestation.challengeTtl = {shortest},"
        " so that two lost rounds are survived"
    )
    return [Finding("attestation.lease", str(times.lease), expected)]


def _clock(settings: ControllerSettings) -> list[Finding]:
    if settings.clock.warn <= settings.clock.refuse:
        return []
    expected = f"at most clock.refuse = {settings.clock.refuse}"
    return [Finding("clock.warn", str(settings.clock.warn), expected)]


def _extender(settings: ControllerSettings) -> list[Finding]:
    tls = settings.extender.tls
    parts = {"cert": tls.cert, "key": tls.key, "clientCa": tls.client_ca}
    missing = [f"extender.tls.{name}" for name, path in parts.items() if path is None]
    address = settings.listen.extender
    if 0 < len(missing) < len(parts):
        return [Finding("extender.tls", f"no {', '.join(missing)}", "all of them, or none")]
    if missing and not address.is_loopback:
        expected = (
            "a loopback address, or client certificates: set extender.tls.clientCa, cert, key"
        )
        return [Finding("listen.extender", str(address), expected)]
    if tls.previous is not None and (missing or not settings.certificates.self_managed.enabled):
        expected = "nothing without extender.tls and certificates.selfManaged.enabled: true"
        return [Finding("extender.tls.previous", str(tls.previous), expected)]
    return []


def _admission(settings: ControllerSettings) -> list[Finding]:
    tls = settings.admission.tls
    parts = {"cert": tls.cert, "key": tls.key}
    missing = [f"admission.tls.{name}" for name, path in parts.items() if path is None]
    if missing and settings.scheduling.mode is Scheduling.AFFINITY:
        expected = "cert and key with scheduling.mode: affinity: pods are pinned by the webhooks"
        return [Finding("admission.tls", f"no {', '.join(missing)}", expected)]
    if not missing or (len(missing) == len(parts) and tls.client_ca is None):
        return []
    expected = "cert and key, with or without clientCa, or none of them"
    return [Finding("admission.tls", f"no {', '.join(missing)}", expected)]


def _hints(settings: ControllerSettings) -> list[Finding]:
    url, ca = settings.hints.scheduler_url, settings.hints.ca
    if ca is not None and not (url or "").startswith("https://"):
        expected = "hints.schedulerUrl: https://… with it"
        return [Finding("hints.ca", str(ca), expected)]
    if url is None:
        return []
    if settings.admission.tls.cert is None:
        expected = "admission.tls.cert and key with it: hints are given by a webhook"
        return [Finding("hints.schedulerUrl", url, expected)]
    if settings.kubernetes.api is KubernetesUse.OFF:
        expected = "nothing with kubernetes.api: off, where there are no pods to hint"
        return [Finding("hints.schedulerUrl", url, expected)]
    return []


def _api(settings: ControllerSettings) -> list[Finding]:
    tls = settings.api.tls
    parts = {"cert": tls.cert, "key": tls.key}
    missing = [f"api.tls.{name}" for name, path in parts.items() if path is None]
    if len(missing) != 1:
        return []
    return [Finding("api.tls", f"no {missing[0]}", "cert and key, or none of them")]


def _access(settings: ControllerSettings) -> list[Finding]:
    tls = settings.access.tls
    parts = {"cert": tls.cert, "key": tls.key}
    missing = [f"access.tls.{name}" for name, path in parts.items() if path is None]
    expected = "cert and key, with or without ca, or none of them"
    if len(missing) == 1 or (missing and tls.ca is not None):
        return [Finding("access.tls", f"no {', '.join(missing)}", expected)]
    if not missing and settings.kubernetes.api is KubernetesUse.OFF:
        expected = "nothing with kubernetes.api: off: the API server says who people are"
        return [Finding("access.tls", str(tls.cert), expected)]
    return []


def _self_managed(settings: ControllerSettings) -> list[Finding]:
    terms, section = settings.certificates.self_managed, "certificates.selfManaged"
    findings = []
    if terms.renew_before >= terms.leaf_lifetime:
        expected = f"less than {section}.leafLifetime = {terms.leaf_lifetime}"
        findings.append(Finding(f"{section}.renewBefore", str(terms.renew_before), expected))
    shortest = Duration(2 * (terms.leaf_lifetime.ns + terms.renew_before.ns))
    if terms.authority_lifetime < shortest:
        expected = f"at least 2 x (leafLifetime + renewBefore) = {shortest}"
        shown = str(terms.authority_lifetime)
        findings.append(Finding(f"{section}.authorityLifetime", shown, expected))
    if terms.enabled and settings.kubernetes.api is KubernetesUse.OFF:
        expected = "false with kubernetes.api: off, because they are kept in Secrets"
        findings.append(Finding(f"{section}.enabled", "true", expected))
    client_ca = settings.admission.tls.client_ca
    if terms.enabled and client_ca is not None and terms.folder in client_ca.parents:
        expected = "a CA of your own, or none: no managed certificate is made for API servers"
        findings.append(Finding("admission.tls.clientCa", str(client_ca), expected))
    return findings


def _static_hashes(settings: ControllerSettings) -> list[Finding]:
    if settings.insecure_static_hashes or not settings.static_hashes:
        return []
    expected = "--insecure-static-hashes with it: a static hash is no evidence"
    count = counted(len(settings.static_hashes), "node")
    return [Finding("staticHashes", count, expected)]


def _kubernetes(settings: ControllerSettings) -> list[Finding]:
    section, findings = settings.kubernetes, []
    if (section.api is KubernetesUse.KUBECONFIG) is not (section.kubeconfig is not None):
        shown = "nothing" if section.kubeconfig is None else str(section.kubeconfig)
        expected = "a file with kubernetes.api: kubeconfig, and without it none"
        findings.append(Finding("kubernetes.kubeconfig", shown, expected))
    if section.context is not None and section.kubeconfig is None:
        expected = "nothing without kubernetes.kubeconfig"
        findings.append(Finding("kubernetes.context", section.context, expected))
    return findings


def _store(settings: ControllerSettings) -> list[Finding]:
    api = settings.kubernetes.api
    if api is KubernetesUse.AUTO:  # only the process knows; the controller checks it at its start
        return []
    finding = store_finding(settings.store.kind, uses_api=api is not KubernetesUse.OFF)
    return [] if finding is None else [finding]


def store_finding(kind: StoreKind, *, uses_api: bool) -> Finding | None:
    """Return what is wrong with `store.kind` where the Kubernetes API is used, or is not."""
    if uses_api and kind in {StoreKind.SQLITE, StoreKind.MEMORY}:
        expected = (
            "auto or kubernetes where the Kubernetes API is used, because replicas with separate"
            " stores give one GPU to two pods: remove store.kind, or set kubernetes.api: off"
        )
        return Finding("store.kind", kind.value, expected)
    if not uses_api and kind is StoreKind.KUBERNETES:
        expected = (
            "auto, sqlite or memory where the Kubernetes API is not used: remove store.kind, or set"
            " kubernetes.api"
        )
        return Finding("store.kind", kind.value, expected)
    return None


def _policy(settings: ControllerSettings) -> list[Finding]:
    if settings.policy.source is not PolicyOrigin.CLUSTER:
        return []
    findings = []
    if settings.kubernetes.api is KubernetesUse.OFF:
        findings.append(Finding("policy.source", "cluster", "file with kubernetes.api: off"))
    if settings.policy.file is not None:
        expected = "nothing with policy.source: cluster"
        findings.append(Finding("policy.file", str(settings.policy.file), expected))
    return findings


def _export(settings: ControllerSettings) -> list[Finding]:
    """Each chosen exporter has what it cannot do without."""
    export = settings.export
    needed = {
        "http": {"endpoint": export.http.endpoint},
        "postgres": {
            "host": export.postgres.host,
            "database": export.postgres.database,
            "user": export.postgres.user,
            "password": export.postgres.password,
        },
        "s3": {"bucket": export.s3.bucket},
    }
    return [
        Finding(f"export.{name}.{key}", "nothing", f"a value with export.exporters: {name}")
        for name in export.exporters
        for key, value in needed.get(name, {}).items()
        if value is None
    ]


def _telemetry(settings: ControllerSettings) -> list[Finding]:
    if not settings.telemetry.logs or settings.telemetry.otlp is not None:
        return []
    return [Finding("telemetry.otlp", "nothing", "an endpoint with telemetry.logs: true")]


def _listeners(settings: ControllerSettings) -> list[Finding]:
    listen = settings.listen
    named = {"agents": listen.agents, "extender": listen.extender, "ops": listen.ops}
    if settings.admission.tls.cert is not None:
        named["admission"] = listen.admission
    if settings.api.tls.cert is not None:
        named["api"] = listen.api
    if settings.access.tls.cert is not None:
        named["accessTokens"] = listen.access_tokens
        named["accessCertificates"] = listen.access_certificates
    return [
        Finding(f"listen.{second}", str(named[second]), f"another port than listen.{first}")
        for first, second in combinations(named, 2)
        if _collide(named[first], named[second])
    ]


def _collide(first: Address, second: Address) -> bool:
    if first.port != second.port or first.port == 0:
        return False
    return first.host == second.host or not (first.host and second.host)
