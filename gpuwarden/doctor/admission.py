"""Checks of the webhooks: registered for all, verified, and doing what they are for. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from gpuwarden.doctor.certificates import (
    SOON,
    bundle_in,
    certificates_in,
    fault_of_chain,
    first_end,
    is_late,
    moment_text,
)
from gpuwarden.doctor.check import Check, Group, Verdict, failed, not_checked, passed, warned
from gpuwarden.doctor.each_replica import not_asked, of_each, where
from gpuwarden.doctor.facts import (
    BINDINGS_WEBHOOK,
    MUTATING,
    NAMESPACES,
    PODS_WEBHOOKS,
    VALIDATING,
    Collection,
    DryRun,
    Facts,
    Object,
    Replica,
    UnknownError,
    labels_of,
    name_of,
    some,
)
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb

ENFORCE: Final = "gpuwarden.dev/enforce"
INFRASTRUCTURE: Final = frozenset({"kube-system", "kube-node-lease"})
SPIRE_NAMESPACES: Final = ("spire-server", "spire-system")
"""Of SPIRE's own chart, left out as it is installed; whoever has no such SPIRE may enforce them."""
_APPLY: Final = "kubectl apply -k OVERLAY"
_PODS: Final = frozenset({("CREATE", "pods"), ("UPDATE", "pods/ephemeralcontainers")})
_BINDINGS: Final = frozenset({("CREATE", "pods/binding"), ("CREATE", "bindings")})
_EXPECTED: Final = (
    (MUTATING, PODS_WEBHOOKS, ("enforced.pods.gpuwarden.dev", "asking.pods.gpuwarden.dev"), _PODS),
    (
        VALIDATING,
        PODS_WEBHOOKS,
        ("enforced.pods.gpuwarden.dev", "asking.pods.gpuwarden.dev"),
        _PODS,
    ),
    (
        MUTATING,
        BINDINGS_WEBHOOK,
        ("enforced.bindings.gpuwarden.dev", "scheduled.bindings.gpuwarden.dev"),
        _BINDINGS,
    ),
)
_CERT_MANAGER: Final = "cert-manager.io/v1"
_LISTENER: Final = "admission"
_NONE: Final = "there are no webhooks"
_VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
_CAUSES: Final = (
    ("no endpoints available", "no controller that is ready stands behind the Service"),
    ("service .* not found", "the webhooks name a Service that is not there"),
    ("connection refused", "nobody listens at the webhooks' address"),
    ("certificate signed by unknown authority", "the caBundle does not verify what is served"),
    ("certificate has expired or is not yet valid", "the served certificate is not valid now"),
    ("certificate is valid for", "the served certificate is for another name"),
    ("tls: |: EOF|connection reset", "the webhooks do not accept the API server's certificate"),
    ("deadline exceeded|Timeout|timeout", "no answer in time"),
)
"""What the API server says when it cannot call a webhook, and what it means."""


def webhooks_are_registered(facts: Facts) -> Verdict:
    """Whether the API server asks about every resource that matters, and refuses without answer."""
    if _are_left_out(facts):
        return warned(
            "none, and the controller serves none: nodes are filtered, and no pod is promised GPUs",
            "the webhooks, unless you mean it",
            facts.reapply(_APPLY, "webhooks.enabled=true"),
        )
    wrong = list(_wrong_webhooks(facts))
    if wrong:
        expected = "the webhooks as gpuwarden installs them"
        return failed("; ".join(wrong), expected, facts.reapply(_APPLY))
    left_out = set().union(*map(_excluded, _webhooks(facts)))
    others = left_out - {*INFRASTRUCTURE, *SPIRE_NAMESPACES, facts.namespace}
    if others:
        return warned(
            f"pods of {some(others)} start without gpuwarden",
            "nothing but infrastructure among them",
            "kubectl get mutatingwebhookconfigurations gpuwarden-pods -o yaml",
        )
    absent = left_out.intersection(SPIRE_NAMESPACES) - set(map(name_of, facts.all(NAMESPACES)))
    if absent:
        return warned(
            f"pods of {some(absent)} would start without gpuwarden, and nobody has made"
            " that namespace yet",
            "the namespaces of SPIRE that this cluster has: pods of others may run on any node, and"
            " the policy gpuwarden-enforcement alone keeps tenants from creating them",
            facts.reapply(_APPLY, "spire.namespaces={NAMESPACE}"),
        )
    return passed("pods, ephemeral containers and both ways of binding")


def _are_left_out(facts: Facts) -> bool:
    """Whether gpuwarden was installed without them: nobody serves and nobody calls any."""
    replicas = facts.replicas.value
    if replicas is None or any(_serves_webhooks(one) for one in replicas.asked):
        return False
    return all(facts.named(collection, name) is None for collection, name, _, _ in _EXPECTED)


def _serves_webhooks(replica: Replica) -> bool:
    return any(one.name == _LISTENER for one in replica.status.listeners)


def _wrong_webhooks(facts: Facts) -> Iterator[str]:
    for collection, configuration, names, calls in _EXPECTED:
        found = facts.named(collection, configuration)
        kind = _kind(collection)
        if found is None:
            yield f"no {kind} {configuration}"
            continue
        webhooks = {one["name"]: one for one in found.get("webhooks") or ()}
        for name in names:
            webhook = webhooks.get(name)
            if webhook is None:
                yield f"{configuration} ({kind}) lacks {name}"
                continue
            missing = calls - set(_calls(webhook))
            if missing:
                lacks = ", ".join(f"{verb} {what}" for verb, what in sorted(missing))
                yield f"{name} ({kind}) is not asked about {lacks}"
            policy = webhook.get("failurePolicy", "Fail")
            if policy != "Fail" and _enforcements(facts) != {"report"}:
                yield f"{name} ({kind}) has failurePolicy: {policy}"
            enforced = _excluded(webhook) & _enforced(facts)
            if enforced:
                yield f"{name} ({kind}) leaves out {some(enforced)}"


def _enforcements(facts: Facts) -> set[str]:
    """Of all replicas, which differ while a change is rolled out; raises UnknownError."""
    return {one.status.enforcement for one in facts.asked}


def _webhooks(facts: Facts) -> Iterator[Object]:
    for collection, configuration, _, _ in _EXPECTED:
        yield from (facts.named(collection, configuration) or {}).get("webhooks") or ()


def _enforced(facts: Facts) -> set[str]:
    found = facts.all(NAMESPACES)
    return {name_of(one) for one in found if labels_of(one).get(ENFORCE) == "true"}


def _calls(webhook: Object) -> Iterator[tuple[str, str]]:
    for rule in webhook.get("rules") or ():
        if "" in rule["apiGroups"] and "v1" in rule["apiVersions"]:
            for verb in rule["operations"]:
                yield from ((verb, resource) for resource in rule["resources"])


def _excluded(webhook: Object) -> set[str]:
    """Namespaces that it is not asked about, by name."""
    expressions = (webhook.get("namespaceSelector") or {}).get("matchExpressions") or ()
    return {
        name
        for one in expressions
        if one["key"] == "kubernetes.io/metadata.name" and one["operator"] == "NotIn"
        for name in one["values"]
    }


def bundle_verifies_what_is_served(facts: Facts) -> Verdict:
    """Whether the API server accepts the webhooks' certificate."""
    ways = _ways(facts)
    if not ways:
        raise UnknownError("no webhook is registered")
    empty = [one.webhook for one in ways if not one.bundle]
    command = "kubectl get mutatingwebhookconfigurations gpuwarden-pods -o yaml"
    if empty:
        expected = "the certificates of the authority, in base64, in every clientConfig.caBundle"
        return failed(f"no caBundle: {some(empty)}", expected, command)

    def judge(replica: Replica) -> Verdict:
        chain = certificates_in(_listener(replica, _LISTENER).certificates.encode())
        if not chain:
            raise UnknownError(f"the listener {_LISTENER} has no certificate")
        for one in ways:
            fault = fault_of_chain(chain, one.bundle, one.name, facts.now.get())
            if fault is not None:
                expected = "a caBundle that verifies the certificate that the webhooks serve"
                return failed(f"{one.webhook}: {fault}", expected, command)
        return passed(f"for {some({one.name for one in ways})}")

    return of_each(facts, judge)


@dataclass(frozen=True, slots=True)
class _Way:
    """How the API server finds a webhook."""

    webhook: str
    name: str
    """What its certificate has to be for."""
    bundle: tuple[x509.Certificate, ...]


def _ways(facts: Facts) -> tuple[_Way, ...]:
    """Those of all webhooks."""
    ways = []
    for collection, configuration, _, _ in _EXPECTED:
        found = facts.named(collection, configuration) or {}
        for one in found.get("webhooks") or ():
            config = one["clientConfig"]
            webhook = f"{one['name']} ({_kind(collection)})"
            ways.append(_Way(webhook, _host(config), bundle_in(config.get("caBundle", ""))))
    return tuple(sorted(ways, key=lambda one: one.webhook))


def _host(config: Object) -> str:
    service = config.get("service")
    if service is not None:
        return f"{service['name']}.{service['namespace']}.svc"
    return urlsplit(config.get("url", "")).hostname or ""


def _kind(collection: Collection) -> str:
    return "mutating" if collection is MUTATING else "validating"


def _listener(replica: Replica, name: str) -> pb.Listener:
    for one in replica.status.listeners:
        if one.name == name:
            return one
    raise UnknownError(f"the controller has no listener {name}")


def certificates_last(facts: Facts) -> Verdict:
    """When the first certificate that a listener serves or an authority in a bundle ends."""
    now = facts.now.get()
    held = _served(facts)
    for one in _ways(facts):
        held[f"caBundle of {one.webhook}"] = one.bundle[-1:]
    held = {what: chain for what, chain in held.items() if chain}
    if not held:
        return not_checked("no listener has a certificate")
    ends = {what: first_end(chain) for what, chain in held.items()}
    first, soonest = min(ends.items(), key=lambda x: x[1])
    seen = f"{first}: it ends at {moment_text(soonest)}"
    command = f"kubectl -n {facts.namespace} get secrets"
    if _CERT_MANAGER in (facts.served.value or ()):
        command += ",certificates"
    if soonest <= now:
        return failed(seen, "certificates that are valid", command)
    late = [what for what, chain in held.items() if any(is_late(x, now) for x in chain)]
    if late:
        return warned(
            f"not renewed: {some(late)}; the first ends at {moment_text(soonest)}",
            "certificates that are renewed before a quarter of their time is left",
            command,
        )
    return passed(f"the first ends at {moment_text(soonest)}{not_asked(facts.replicas.get())}")


def _served(facts: Facts) -> dict[str, tuple[x509.Certificate, ...]]:
    """The chain of each listener, by the replicas that serve it; raises UnknownError."""
    replicas = facts.replicas.get()
    serving: dict[tuple[str, str], list[str]] = {}
    for replica in replicas.asked:
        for one in replica.status.listeners:
            serving.setdefault((one.name, one.certificates), []).append(replica.name)
    held = {}
    for (listener, certificates), names in serving.items():
        on = where(replicas, names)
        what = f"{listener} on {on} serves" if on else f"{listener} serves"
        held[what] = certificates_in(certificates.encode())
    return held


def api_server_shows_a_certificate(facts: Facts) -> Verdict:
    """Whether the webhooks know who calls them, and for how long."""
    return of_each(facts, lambda replica: _api_server_by(facts, replica))


def _api_server_by(facts: Facts, replica: Replica) -> Verdict:
    listener = _listener(replica, _LISTENER)
    if not listener.demands_certificate:
        return warned(
            "the webhooks demand none: whoever reaches their port may ask about pods of its own"
            " making, and gets nothing by it",
            "the API server's client certificate (admission.tls.clientCa), or a NetworkPolicy"
            " that lets the API servers in alone",
            f"kubectl -n {facts.namespace} get networkpolicies -o yaml",
        )
    if not listener.client_ends:
        return not_checked("no API server has called within a day")
    return _client_verdict(facts, listener, "the API server's")


def _client_verdict(facts: Facts, listener: pb.Listener, whose: str) -> Verdict:
    ends = datetime.fromisoformat(listener.client_ends)
    seen = f"{whose} ends at {moment_text(ends)}"
    command = "openssl x509 -noout -subject -enddate -in CLIENT_CERTIFICATE"
    if ends <= facts.now.get():
        return failed(seen, "a client certificate that is valid", command)
    if ends - facts.now.get() < SOON:
        return warned(seen, "one that lasts for two weeks or more", command)
    return passed(seen)


def scheduler_shows_a_certificate(facts: Facts) -> Verdict:
    """Whether the scheduler's certificate for the extender lasts."""

    def judge(replica: Replica) -> Verdict:
        listener = _listener(replica, "extender")
        if not listener.client_ends:
            return not_checked("no scheduler has called within a day")
        return _client_verdict(facts, listener, "the scheduler's")

    return of_each(facts, judge)


def a_pod_is_mutated(facts: Facts) -> Verdict:
    """Whether a pod with a requirement gets what keeps it away from other GPUs."""
    found = facts.asking_pod.get()
    if _is_report(facts):
        return not_checked("enforcement is report: nothing is patched")
    if _are_left_out(facts):
        return not_checked(_NONE)
    if found.status >= _ERRORS:
        return _refused(facts, found, "a pod that is admitted")
    containers = found.answer["spec"]["containers"]
    if all(_has_variable(one) for one in containers):
        return passed(f"{_VARIABLE} is set by gpuwarden")
    return failed(
        f"the pod was admitted without {_VARIABLE}",
        "a pod that gpuwarden has patched",
        facts.reapply(_APPLY),
    )


def a_wrong_pod_is_refused(facts: Facts) -> Verdict:
    """Whether a pod whose requirement cannot be read is refused, by gpuwarden."""
    found = facts.wrong_pod.get()
    if f"gpuwarden: {ReasonCode.REQ_INVALID}" in found.message:
        return passed(ReasonCode.REQ_INVALID.value)
    if _is_report(facts):
        return not_checked("enforcement is report: nothing is refused")
    if _are_left_out(facts):
        return not_checked(_NONE)
    if found.status >= _ERRORS:
        return _refused(facts, found, f"a refusal with {ReasonCode.REQ_INVALID}")
    seen = "a pod was admitted whose requirement cannot be read"
    return failed(seen, f"a refusal with {ReasonCode.REQ_INVALID}", facts.reapply(_APPLY))


_ERRORS: Final = 400


def _is_report(facts: Facts) -> bool:
    return facts.replicas.value is not None and "report" in _enforcements(facts)


def _has_variable(container: Object) -> bool:
    return any(one["name"] == _VARIABLE for one in container.get("env") or ())


def _refused(facts: Facts, found: DryRun, expected: str) -> Verdict:
    """Somebody else's refusal is none of gpuwarden's doing."""
    message = found.message
    if "gpuwarden: " not in message and ".gpuwarden.dev" not in message:
        return not_checked(f"the API server or another policy refused the pod: {message}")
    if "failed calling webhook" not in message:
        return failed(message, expected, "gpuwarden status")
    causes = (cause for pattern, cause in _CAUSES if re.search(pattern, message))
    cause = next(causes, "the API server cannot call the webhook")
    command = f"kubectl -n {facts.namespace} get pods,endpointslices"
    return failed(f"{cause}: {message}", expected, command)


def namespaces_are_enforced(facts: Facts) -> Verdict:
    """Whether the label is somewhere, spelled as it has to be, and not where it must not be."""
    labelled = {
        name_of(one): labels_of(one)[ENFORCE]
        for one in facts.all(NAMESPACES)
        if ENFORCE in labels_of(one)
    }
    wrong = {name: text for name, text in labelled.items() if text not in {"true", "false"}}
    if wrong:
        name, text = min(wrong.items())
        return failed(
            f"{name} has {ENFORCE}={text}, which enforces nothing",
            "true or false",
            f"kubectl label namespace {name} {ENFORCE}=true --overwrite",
        )
    own = sorted({*INFRASTRUCTURE, facts.namespace} & labelled.keys())
    if own:
        return failed(
            f"{own[0]} has the label {ENFORCE}, which does not count there",
            "the label on namespaces of tenants",
            f"kubectl label namespace {own[0]} {ENFORCE}-",
        )
    enforced = [name for name, text in labelled.items() if text == "true"]
    if not enforced:
        return warned(
            "no namespace is enforced: only pods with a requirement meet gpuwarden",
            "the label on every namespace whose pods may have GPUs",
            f"kubectl label namespace NAMESPACE {ENFORCE}=true",
        )
    return passed(some(enforced))


SCHEDULER_CERTIFICATE: Final = Check(
    "scheduler-certificate",
    "the scheduler's client certificate lasts",
    "To each replica it has shown one within a day.",
    scheduler_shows_a_certificate,
    "troubleshooting.md#a-client-certificate-ends",
)
ADMISSION: Final = Group(
    "webhooks",
    "Webhooks",
    (
        Check(
            "webhooks-registered",
            "the webhooks are registered for all resources",
            "Pods, ephemeral containers, `pods/binding` and `bindings`, with `failurePolicy: Fail`,"
            " in every enforced namespace. A warning: no webhooks; another namespace is left out"
            " than the cluster's own and SPIRE's (`spire-server`, `spire-system`), or these two"
            " are, and do not exist.",
            webhooks_are_registered,
            "admission.md#install",
        ),
        Check(
            "webhooks-ca",
            "the caBundle verifies the served certificate",
            "Of each replica, for the webhook's host.",
            bundle_verifies_what_is_served,
            "troubleshooting.md#tls-handshakes-fail",
        ),
        Check(
            "certificates",
            "no certificate ends soon",
            "Each replica's, and the last authority in each `caBundle`.",
            certificates_last,
            "troubleshooting.md#a-new-certificate-is-not-served",
        ),
        Check(
            "api-server-certificate",
            "the API server shows its client certificate",
            "To each replica within a day. Managed control planes cannot: there the network must"
            " keep others from the webhooks.",
            api_server_shows_a_certificate,
            "troubleshooting.md#a-client-certificate-ends",
        ),
        Check(
            "pod-mutated",
            "a pod with a requirement is patched (dry run)",
            "",
            a_pod_is_mutated,
            "troubleshooting.md#a-pod-is-not-created",
        ),
        Check(
            "pod-refused",
            "a pod with a wrong requirement is refused (dry run)",
            "",
            a_wrong_pod_is_refused,
            "troubleshooting.md#a-pod-is-not-created",
        ),
        Check(
            "namespaces-enforced",
            "namespaces are enforced",
            f"At least one has the label `{ENFORCE}=true`, none a value but `true` and `false`, the"
            " cluster's own none.",
            namespaces_are_enforced,
            "policies.md#enforced-namespaces",
        ),
    ),
)
