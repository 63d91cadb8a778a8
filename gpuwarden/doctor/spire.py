"""Checks of SPIRE: reachable, entries right, no more rights than needed, SVIDs valid. Pure."""

import json
from collections.abc import Mapping
from shlex import quote
from typing import Final

from gpuwarden.doctor.check import Check, Group, Verdict, failed, not_checked, passed, warned
from gpuwarden.doctor.daemon_sets import left_out, spire_agents
from gpuwarden.doctor.each_replica import of_each
from gpuwarden.doctor.facts import (
    AGENTS,
    CONTROLLERS,
    PODS,
    SPIFFE_IDS,
    Fact,
    Facts,
    Object,
    Replica,
    UnknownError,
    labels_of,
    name_of,
    some,
)
from gpuwarden.doctor.nodes import AGENT, gpu_nodes
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names

_SHORT_S: Final = 60.0
_OF_ENTRIES: Final = frozenset(x for x in ReasonCode if x.startswith("SPIRE_")) - {
    ReasonCode.SPIRE_UNAVAILABLE,
    ReasonCode.SPIRE_STATUS_STALE,
}
"""What the SPIRE server says about an agent."""
_OF_SVIDS: Final = frozenset({ReasonCode.SVID_EXPIRED, ReasonCode.SVID_NOT_YET_VALID})
_OBJECTS: Final = frozenset({AGENTS, CONTROLLERS})
_FIND_CLASS: Final = (
    "the className of the SPIRE controller manager; with SPIRE's Helm charts: kubectl -n NAMESPACE"
    " get configmap RELEASE-controller-manager -o yaml | grep className"
)
_UNKNOWN: Final = "unknown"
"""State of a node that has shown nothing."""


def spire_is_installed(facts: Facts) -> Verdict:
    """Whether agents run that could give SVIDs, on every node with GPUs."""
    found = [name_of(one) for one in spire_agents(facts)]
    if not found:
        return warned(
            "no DaemonSet with spire-agent in its name or image",
            "a SPIRE agent on every node, and its socket",
            "kubectl get daemonsets -A",
        )
    wanted = (one for one in gpu_nodes(facts) if labels_of(one).get(AGENT) != "off")
    out = left_out(facts, wanted)
    if out is not None:
        return failed(out.seen, out.expected, out.command)
    return passed(f"DaemonSet {', '.join(found)}")


def spire_answers(facts: Facts) -> Verdict:
    """Whether each replica can ask the SPIRE server."""
    return of_each(facts, lambda replica: _server_by(facts, replica))


def _server_by(facts: Facts, replica: Replica) -> Verdict:
    spire = replica.status.spire
    if not spire.configured:
        return warned(
            "spire.server is off: every level ends at L0",
            "the address of the SPIRE server, for level L1",
            "gpuwarden config print --process controller --config FILE",
        )
    if spire.error:
        expected = "a SPIRE server that answers the controller"
        return failed(spire.error, expected, facts.log_of(replica.name))
    return passed("the server answers")


def spire_lets_read_only(facts: Facts) -> Verdict:
    """Whether the controller could issue SVIDs if it were taken over."""
    return of_each(facts, _rights_by)


def _rights_by(replica: Replica) -> Verdict:
    spire = replica.status.spire
    if not spire.configured:
        return not_checked("spire.server is off")
    if spire.excessive:
        return failed(
            "the SPIRE server lets the controller do more than read",
            "the authorization policy of deploy/spire, no admin entry and no admin_ids",
            "spire-server entry show -spiffeID spiffe://TRUST_DOMAIN/gpuwarden/controller",
        )
    if spire.error:
        raise UnknownError(f"the SPIRE server does not answer: {spire.error}")
    return passed("reading is all that it may")


def entries_are_right(facts: Facts) -> Verdict:
    """Whether SPIRE knows controller and agents."""
    missed = [one for one in _own(facts) if _is_missed(facts, one)]
    ignored = [one for one in missed if not _is_handled(one)]
    if ignored:
        return _ignored(facts, ignored)
    empty = [one for one in missed if _has_pods(facts, one) and not _entries(one)]
    if empty:
        return _without_entries(empty)
    return of_each(facts, lambda replica: _entries_by(facts, replica))


def _own(facts: Facts) -> list[Object]:
    return [one for one in facts.all(SPIFFE_IDS) if name_of(one) in _OBJECTS]


def _stats(one: Object) -> Mapping[str, int]:
    """What a SPIRE controller manager has counted for a ClusterSPIFFEID of its class.

    It counts the namespaces that the object selects, too, and stores nothing while all counts are
    0. Source: spiffe/spire-controller-manager, pkg/spireentry/reconciler.go.
    """
    found: Mapping[str, int] = (one.get("status") or {}).get("stats") or {}
    return found


def _is_handled(one: Object) -> bool:
    return any(_stats(one).values())


def _entries(one: Object) -> int:
    return max(0, _stats(one).get("entriesToSet", 0) - _stats(one).get("entryFailures", 0))


def _is_missed(facts: Facts, one: Object) -> bool:
    """Whether nothing shows that SPIRE has the entries, by this object or by hand."""
    asked = () if facts.replicas.value is None else facts.replicas.value.asked
    if any(x.status.spire.unregistered for x in asked):
        return True
    nodes = [node for x in asked for node in x.fleet.value or ()]
    if any(node.code in _OF_ENTRIES for node in nodes):
        return True
    if name_of(one) == AGENTS:
        return not any(node.state != _UNKNOWN for node in nodes)
    metrics = (x.metrics.value for x in asked)
    return not any((x.value(names.SVID_EXPIRY) or 0) > 0 for x in metrics if x is not None)


def _has_pods(facts: Facts, one: Object) -> bool:
    """Whether there are pods of which the object should make entries."""
    component = name_of(one).removeprefix("gpuwarden-")
    pods = facts.objects.get(PODS, Fact()).value or ()
    return any(labels_of(x).get("app.kubernetes.io/component") == component for x in pods)


def _ignored(facts: Facts, ignored: list[Object]) -> Verdict:
    """No SPIRE controller manager handles these objects."""
    has = {one["spec"].get("className", "") for one in ignored}
    others = {
        one["spec"]["className"]
        for one in facts.all(SPIFFE_IDS)
        if _is_handled(one) and one["spec"].get("className")
    }
    if others and others <= has:
        return _without_entries(ignored)
    named = ", ".join(sorted(f"className {x}" if x else "no className" for x in has))
    wanted, expected = "CLASS", _FIND_CLASS
    if len(others - has) == 1:
        (wanted,) = others - has
        expected = f"className {wanted}, which other ClusterSPIFFEIDs have that are handled"
    patch = json.dumps({"spec": {"className": wanted}}, separators=(",", ":"))
    objects = " ".join(sorted(map(name_of, ignored)))
    return failed(
        f"with {named}, no SPIRE controller manager handles {_named(ignored)}",
        expected,
        facts.reapply(
            f"kubectl patch clusterspiffeids {objects} --type=merge -p {quote(patch)}",
            f"spire.className={wanted}",
        ),
    )


def _without_entries(found: list[Object]) -> Verdict:
    """What is wrong, where it is not their class."""
    counts = {x: n for one in found for x, n in sorted(_stats(one).items()) if n}
    text = ", ".join(f"{x} {n}" for x, n in counts.items()) or "no counts in its status"
    return failed(
        f"the SPIRE controller manager makes no entries of {_named(found)}: {text}",
        "an entry for each pod; the log of the SPIRE controller manager says why there is none",
        f"kubectl get clusterspiffeids {' '.join(sorted(map(name_of, found)))} -o yaml",
    )


def _named(found: list[Object]) -> str:
    text = ", ".join(
        name_of(one) + (", which has admin: true" if one["spec"].get("admin") else "")
        for one in sorted(found, key=name_of)
    )
    return f"ClusterSPIFFEID {text}"


def _entries_by(facts: Facts, replica: Replica) -> Verdict:
    spire, fleet = replica.status.spire, replica.fleet.get()
    wrong = ["no registration entry of the controller"] if spire.unregistered else []
    out = [one.name for one in fleet if one.code in _OF_ENTRIES]
    if out:
        codes = sorted({one.code for one in fleet if one.code in _OF_ENTRIES})
        wrong.append(f"{', '.join(codes)} of {some(out)}")
    wrong += [f"{name_of(x)} has admin: true" for x in _own(facts) if x["spec"].get("admin")]
    if wrong:
        return failed(
            "; ".join(wrong),
            "an entry of the controller and of each node's agent, below that node's SPIRE agent",
            _register(facts),
        )
    if not spire.configured:
        return not_checked("spire.server is off")
    if spire.error:
        raise UnknownError(f"the SPIRE server does not answer: {spire.error}")
    return passed("of the controller and of all agents")


def _register(facts: Facts) -> str:
    """Helm makes objects of the entries where the cluster knows them, and else prints commands."""
    if facts.release and not facts.all(SPIFFE_IDS):
        return f"helm get notes {facts.release} --namespace {facts.namespace}"
    return facts.reapply("kubectl apply -f deploy/spire/clusterspiffeids.yaml")


def svids_are_valid(facts: Facts) -> Verdict:
    """Whether the controller's SVID and those that agents show are valid now."""
    return of_each(facts, _svids_by)


def _svids_by(replica: Replica) -> Verdict:
    left = replica.metrics.get().value(names.SVID_EXPIRY)
    if left is None:
        raise UnknownError(f"{names.SVID_EXPIRY.name} is not among the controller's metrics")
    out = [one for one in replica.fleet.get() if one.code in _OF_SVIDS]
    if left <= 0:
        seen = "the controller has no valid SVID"
        return failed(seen, "an SVID that SPIRE renews", "gpuwarden status")
    if out:
        codes = ", ".join(sorted({one.code for one in out}))
        return failed(
            f"{codes} of {some(x.name for x in out)}",
            "valid SVIDs, and clocks that agree",
            f"gpuwarden explain node {out[0].name}",
        )
    if left < _SHORT_S:
        return warned(
            f"the controller's ends in {left:.0f} s",
            "an SVID that is renewed when half of its time is over",
            "kubectl get pods -A -l app.kubernetes.io/name=agent",
        )
    return passed(f"the controller's lasts {left:.0f} s, agents' are valid")


SPIRE_BEFORE: Final = Check(
    "spire-installed",
    "SPIRE is installed, and its agents go to every GPU node",
    "By node selector, affinity and tolerations of their DaemonSet.",
    spire_is_installed,
)
SPIRE: Final = Group(
    "spire",
    "SPIRE",
    (
        Check(
            "spire-server",
            "the SPIRE server answers the controller",
            "Level L1 needs it.",
            spire_answers,
            "spire.md",
        ),
        Check(
            "spire-policy",
            "the SPIRE server lets the controller read, and nothing else",
            "Otherwise whoever takes the controller over can issue any SVID.",
            spire_lets_read_only,
            "spire.md",
        ),
        Check(
            "spire-entries",
            "the registration entries are right",
            "Controller and agents have one each, below an attested SPIRE agent. No"
            " ClusterSPIFFEID is `admin`; gpuwarden's have the `className` of the SPIRE controller"
            " manager, or none with `watchClassless`.",
            entries_are_right,
            "troubleshooting.md#no-svid",
        ),
        Check(
            "svids",
            "the SVIDs are valid",
            "Each replica's, and those of agents.",
            svids_are_valid,
            "spire.md#svids-and-ca",
        ),
    ),
)
