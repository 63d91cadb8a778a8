"""Checks of SPIRE: reachable, entries right, no more rights than needed, SVIDs valid. Pure."""

from typing import Final

from gpuwarden.doctor.check import Check, Group, Verdict, failed, not_checked, passed, warned
from gpuwarden.doctor.daemon_sets import left_out, spire_agents
from gpuwarden.doctor.each_replica import of_each
from gpuwarden.doctor.facts import (
    SPIFFE_IDS,
    Facts,
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
_OBJECTS: Final = frozenset({"gpuwarden-agent", "gpuwarden-controller"})


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
    return of_each(facts, lambda replica: _entries_by(facts, replica))


def _entries_by(facts: Facts, replica: Replica) -> Verdict:
    spire, fleet = replica.status.spire, replica.fleet.get()
    wrong = ["no registration entry of the controller"] if spire.unregistered else []
    out = [one.name for one in fleet if one.code in _OF_ENTRIES]
    if out:
        codes = sorted({one.code for one in fleet if one.code in _OF_ENTRIES})
        wrong.append(f"{', '.join(codes)} of {some(out)}")
    objects = {name_of(x): x for x in facts.all(SPIFFE_IDS) if name_of(x) in _OBJECTS}
    wrong += [f"{name} has admin: true" for name, x in objects.items() if x["spec"].get("admin")]
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
    "SPIRE is installed",
    "Every node with GPUs needs a SPIRE agent. Node selector, affinity and tolerations of its"
    " DaemonSet are compared with labels and taints of these nodes.",
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
            " ClusterSPIFFEID is `admin`.",
            entries_are_right,
            "troubleshooting.md#no-svid",
        ),
        Check(
            "svids",
            "the SVIDs are valid",
            "Each replica's own, and those that agents have shown it.",
            svids_are_valid,
            "spire.md#svids-and-ca",
        ),
    ),
)
