"""Checks of the scheduler: it runs, asks the extender, and is configured to heed it. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuwarden.counted import counted
from gpuwarden.doctor.admission import SCHEDULER_CERTIFICATE
from gpuwarden.doctor.check import Check, Group, Verdict, failed, not_checked, passed, warned
from gpuwarden.doctor.each_replica import not_asked
from gpuwarden.doctor.facts import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    SCHEDULER,
    Facts,
    Replica,
    UnknownError,
    name_of,
    pod_spec,
)
from gpuwarden.strict_yaml import YamlError, parse_plain
from gpuwarden.telemetry import names

_KIND: Final = "KubeSchedulerConfiguration"
_API: Final = "kubescheduler.config.k8s.io/v1"
_MAX_BYTES: Final = 1 << 20
_SHORTEST_S: Final = 5.0
_LONGEST_S: Final = 30.0
_DURATION: Final = re.compile(r"(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_ELSEWHERE: Final = "no Deployment gpuwarden-scheduler: the cluster's own scheduler is not seen"
_EXTENDER: Final = "extender"
_CLOSED: Final = "closed"
"""A cause of a handshake that failed: the client hung up."""
_KUBERNETES_OWN: Final = "default-scheduler"


def scheduler_runs(facts: Facts) -> Verdict:
    """Whether the dedicated scheduler is ready."""
    found = facts.named(DEPLOYMENTS, SCHEDULER)
    if found is None:
        return not_checked(_ELSEWHERE)
    wanted = found["spec"].get("replicas", 1)
    ready = (found.get("status") or {}).get("readyReplicas", 0)
    if not ready:
        command = f"kubectl -n {facts.namespace} describe deployment {SCHEDULER}"
        return failed(f"{ready} of {wanted} ready", "one that is ready", command)
    if ready < wanted:
        command = f"kubectl -n {facts.namespace} rollout status deployment {SCHEDULER} --timeout=2m"
        return warned(f"{ready} of {wanted} ready", "all of them", command)
    return passed(f"{ready} of {wanted} ready")


def scheduler_is_configured(facts: Facts) -> Verdict:
    """Whether its configuration makes the extender's word count."""
    text = _configuration(facts)
    if text is None:
        return not_checked(_ELSEWHERE)
    command = facts.reapply("kubectl apply -k deploy/scheduler")
    try:
        document = parse_plain(text.encode(), max_bytes=_MAX_BYTES)
    except YamlError as error:
        return failed(str(error), f"a {_KIND}", command)
    wrong = list(_faults(document, _given(facts)))
    if wrong:
        return failed("; ".join(wrong), "the configuration of deploy/scheduler", command)
    return passed("as in deploy/scheduler")


def _given(facts: Facts) -> str:
    """The schedulerName that a pod gets which names none; empty where that is not known."""
    dry_run = facts.asking_pod.value
    name = (dry_run.answer.get("spec") or {}).get("schedulerName", "") if dry_run else ""
    return "" if name == _KUBERNETES_OWN else str(name)


def _configuration(facts: Facts) -> str | None:
    """What the Deployment's pods read; None where there is none."""
    deployment = facts.named(DEPLOYMENTS, SCHEDULER)
    if deployment is None:
        return None
    volumes = pod_spec(deployment).get("volumes") or ()
    mounted = {one["configMap"]["name"] for one in volumes if "configMap" in one}
    for one in facts.all(CONFIG_MAPS):
        for text in (one.get("data") or {}).values():
            if name_of(one) in mounted and _KIND in text:
                return str(text)
    raise UnknownError(f"no ConfigMap of the Deployment {SCHEDULER} holds a {_KIND}")


def _faults(document: object, given: str) -> Iterator[str]:
    """Everything that would let a pod past the extender, or stall it."""
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        yield f"no {_KIND}"
        return
    if document.get("apiVersion") != _API:
        yield f"apiVersion is {document.get('apiVersion')}"
    share = document.get("percentageOfNodesToScore")
    if share != 100:  # noqa: PLR2004 - per cent
        yield f"percentageOfNodesToScore is {_shown(share)}, expected 100"
    profiles = _objects(document.get("profiles"))
    names_of_profiles = {one.get("schedulerName") for one in profiles}
    if not profiles or (given and given not in names_of_profiles):
        yield f"no profile {given or 'of ours'}"
    extenders = [x for x in _objects(document.get("extenders")) if x.get("filterVerb") == "filter"]
    if len(extenders) != 1:
        yield f"{len(extenders)} extenders with filterVerb: filter, expected 1"
        return
    (extender,) = extenders
    yield from _extender_faults(extender)
    if extender.get("preemptVerb") != "preempt" and not all(map(_never_preempts, profiles)):
        yield "preemptVerb is missing, and a profile has DefaultPreemption"


def _extender_faults(extender: Mapping[str, Any]) -> Iterator[str]:
    if extender.get("ignorable", False):
        yield "ignorable is true: without an answer pods are placed anywhere"
    if not extender.get("nodeCacheCapable", False):
        yield "nodeCacheCapable is not true"
    if extender.get("prioritizeVerb") != "prioritize":
        yield "prioritizeVerb is not prioritize"
    if extender.get("bindVerb"):
        yield "bindVerb is set"
    if extender.get("managedResources"):
        yield "managedResources is set: pods that request none of them are not asked about"
    timeout = _seconds(extender.get("httpTimeout", "5s"))
    if timeout is None or not _SHORTEST_S <= timeout <= _LONGEST_S:
        yield f"httpTimeout is {_shown(extender.get('httpTimeout'))}, expected 5s to 30s"
    tls = extender.get("tlsConfig")
    tls = tls if isinstance(tls, dict) else {}
    if not str(extender.get("urlPrefix", "")).startswith("https://"):
        yield "urlPrefix is not https://"
    elif not extender.get("enableHTTPS") or not (tls.get("caFile") or tls.get("caData")):
        yield "enableHTTPS or the CA in tlsConfig is missing: the extender is not verified"


def _never_preempts(profile: Mapping[str, Any]) -> bool:
    plugins = profile.get("plugins")
    stage = plugins.get("postFilter") if isinstance(plugins, dict) else None
    disabled = _objects(stage.get("disabled")) if isinstance(stage, dict) else ()
    return any(one.get("name") in {"DefaultPreemption", "*"} for one in disabled)


def _objects(value: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(x for x in value if isinstance(x, dict)) if isinstance(value, list) else ()


def _seconds(text: object) -> float | None:
    found = _DURATION.fullmatch(text) if isinstance(text, str) and text else None
    if found is None:
        return None
    return int(found[1] or 0) * 60 + float(found[2] or 0)


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)


def scheduler_reaches_the_extender(facts: Facts) -> Verdict:
    """Whether somebody has asked the extender, and no replica turns everybody away.

    A scheduler keeps its connection to one replica: that the others are not asked is no fault.
    """
    replicas = facts.replicas.get()
    read = [one for one in replicas.asked if one.metrics.value is not None]
    asked = int(sum(one.metrics.get().total(names.EXTENDER_REQUESTS) for one in read))
    counts = {one.name: _turned_away(one, is_asked=asked > 0) for one in read}
    closed = {name: count for name, count in counts.items() if count}
    if closed:
        seen = ", ".join(f"{count:.0f} on {name}" for name, count in closed.items())
        return (warned if asked else failed)(
            f"TLS handshakes failed and none succeeded: {seen}; {counted(asked, 'request')} in all",
            "a scheduler that the extender of every replica lets in",
            facts.log_of(min(closed)),
        )
    unread = [one for one in replicas.asked if one not in read]
    if unread and not asked:
        raise UnknownError(unread[0].metrics.why)
    rest = "".join(f"; not of {one.name}: {one.metrics.why}" for one in unread) + not_asked(
        replicas
    )
    if asked:
        return passed(f"{counted(asked, 'request')}{rest}")
    return not_checked(f"nobody has asked the extender of a replica since it started{rest}")


def _turned_away(replica: Replica, *, is_asked: bool) -> float:
    """Handshakes that failed, where none succeeded.

    Where other replicas are asked, whoever hangs up here is taken for a probe.
    """
    metrics = replica.metrics.get()
    if metrics.total(names.HANDSHAKES_COMPLETED, listener=_EXTENDER):
        return 0
    failures = metrics.total(names.HANDSHAKE_FAILURES, listener=_EXTENDER)
    if is_asked:
        failures -= metrics.total(names.HANDSHAKE_FAILURES, listener=_EXTENDER, cause=_CLOSED)
    return failures


SCHEDULER_GROUP: Final = Group(
    "scheduler",
    "Scheduler",
    (
        Check(
            "scheduler-runs",
            "the dedicated scheduler runs",
            "The Deployment `gpuwarden-scheduler`, unless the cluster's own scheduler has the"
            " extender.",
            scheduler_runs,
            "scheduling.md",
        ),
        Check(
            "scheduler-configuration",
            "the scheduler's configuration makes the extender's answers count",
            "`ignorable` is false, `nodeCacheCapable` is true, `httpTimeout` is 5 s to 30 s,"
            " `percentageOfNodesToScore` is 100, the extender is verified by a CA, no"
            " `managedResources`, and preemption asks gpuwarden or is off.",
            scheduler_is_configured,
            "scheduling.md",
        ),
        Check(
            "scheduler-extender",
            "the scheduler reaches the extender",
            "A replica on which TLS handshakes failed and none succeeded is a warning.",
            scheduler_reaches_the_extender,
            "troubleshooting.md#tls-handshakes-fail",
        ),
        SCHEDULER_CERTIFICATE,
    ),
)
