"""The webhooks for pods: what the ledger is asked for a pod at its creation, what is recorded."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.admission.early_reservation import DRY_RUN_ID, EarlyAsk, Given, Granted
from controller.admission.pod_webhooks import (
    AdmissionDecision,
    Owner,
    PodWebhooks,
    admission_record,
)
from controller.admission.review import Verdict
from controller.admission.rules import AdmissionRules
from controller.admission.validation import Judged
from controller.ledger.record import PodRef
from controller.ledger.reservation_id import ReservationIds, ReservationSubject
from controller.placement.cures import is_passing
from controller.policy import NodeMode, Policy
from controller.record import Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode, Refusal
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import (
    LEVEL,
    UUIDS,
    Document,
    admitted,
    container,
    documents,
    new_pod,
    patched,
    variable,
)
from tests.builders.bindings import IDS
from tests.fakes.admission import AdmissionWorld

MUTATE, VALIDATE = "/mutate/pods", "/validate/pods"
NODE, GPU = "gpu-1", "GPU-a"
EARLY = UUIDS | {"gpuwarden.dev/reserve": "admission"}
ID = IDS.make(ReservationSubject("team-a", NODE, (GPU,)), "0" * 32)
GRANTED = Granted(ID, "team-a", NODE, (GPU,))
SAID = {
    "gpuwarden.dev/reservation-id": ID,
    "gpuwarden.dev/node": NODE,
    "gpuwarden.dev/gpu-uuids-assigned": GPU,
}
BUSY = Refusal(ReasonCode.GPU_BUSY, "all are taken")


@dataclass
class Ledger:
    """Answers as it is told, and remembers what it was asked."""

    ids: ReservationIds | None = IDS
    given: Given | Refusal = field(default_factory=lambda: Given(GRANTED, SAID))
    against: Refusal | None = None
    asks: list[EarlyAsk] = field(default_factory=list)
    taken: list[tuple[Granted, PodRef]] = field(default_factory=list)

    async def reserve(self, ask: EarlyAsk) -> Given | Refusal:
        self.asks.append(ask)
        return self.given

    async def take(self, granted: Granted, pod: PodRef) -> Refusal | None:
        self.taken.append((granted, pod))
        return self.against


@dataclass
class Stage:
    """The webhooks with a ledger; namespace team-a is enforced."""

    ledger: Ledger | None = field(default_factory=Ledger)
    report: bool = False
    policy: Callable[[], Policy | None] | None = None
    rules: AdmissionRules = field(default_factory=AdmissionRules)
    decisions: list[AdmissionDecision] = field(default_factory=list)

    def webhooks(self) -> PodWebhooks:
        return PodWebhooks(
            self.rules,
            is_enforced={"team-a"}.__contains__,
            note=self.decisions.append,
            early=self.ledger,
            report=self.report,
            **({} if self.policy is None else {"policy": self.policy}),
        )

    async def ask(self, path: str, pod: Document, **request: Any) -> Verdict:
        handler = self.webhooks().handlers()[path]
        return await handler(request_of(review_json(pod, **request)))


def codes(verdict: Verdict) -> list[str]:
    return [refusal.code.value for refusal in verdict.refusals]


def early(**metadata: Any) -> Document:
    pod = new_pod(annotations=EARLY)
    return pod | {"metadata": pod["metadata"] | metadata}


def on_its_node(**metadata: Any) -> Document:
    pod = early(**metadata)
    return pod | {"spec": pod["spec"] | {"nodeName": NODE}}


async def born(**metadata: Any) -> Document:
    """The pod as the mutating webhook leaves it, with name and UID."""
    pod = early()
    made: Document = applied(pod, documents((await Stage().ask(MUTATE, pod)).patch))
    return made | {"metadata": made["metadata"] | {"name": "train-0", "uid": "u"} | metadata}


# --- The ledger is asked for GPUs


async def test_the_ledger_hears_who_is_to_be_reserved_for() -> None:
    stage, pod = Stage(), early()
    verdict = await stage.ask(MUTATE, pod, uid="request-1")
    assert verdict.result == "patched"
    assert stage.ledger is not None
    (ask,) = stage.ledger.asks
    assert (ask.request, ask.namespace, ask.pod) == ("request-1", "team-a", admitted(pod))
    assert ask.needs.uuids == (GPU,)
    assert (ask.granted, ask.enforced, ask.dry_run) == (None, True, False)


async def test_it_hears_what_the_pod_brings_and_of_a_dry_run_elsewhere() -> None:
    stage = Stage()
    granted = replace(GRANTED, namespace="team-b")
    mine = IDS.make(ReservationSubject("team-b", NODE, (GPU,)), "0" * 32)
    pod = early(annotations=EARLY | SAID | {"gpuwarden.dev/reservation-id": mine})
    await stage.ask(MUTATE, pod, namespace="team-b", dry_run=True)
    assert stage.ledger is not None
    (ask,) = stage.ledger.asks
    assert ask.granted == replace(granted, reservation=mine)
    assert (ask.namespace, ask.enforced, ask.dry_run) == ("team-b", False, True)


async def test_what_is_given_is_written_beside_what_is_missing() -> None:
    made = await born()
    assert SAID.items() <= made["metadata"]["annotations"].items()
    assert made["spec"]["schedulerName"] == "gpuwarden"
    assert NODE in str(made["spec"]["affinity"])


async def test_without_gpus_a_pod_that_names_its_node_is_refused_and_that_is_recorded() -> None:
    stage = Stage(Ledger(given=BUSY))
    verdict = await stage.ask(MUTATE, on_its_node())
    assert verdict == Verdict((BUSY,), result="refused")
    (decision,) = stage.decisions
    assert (decision.step, decision.word, decision.refusals) == ("mutate", "refused", (BUSY,))
    assert (decision.reservation, decision.gpus) == ("", ())


@pytest.mark.parametrize("code", ReasonCode)
async def test_a_pod_waits_for_what_will_pass(code: ReasonCode) -> None:
    stage = Stage(Ledger(given=Refusal(code, "now")))
    verdict = await stage.ask(MUTATE, early())
    waits = {
        "AUDIT_UNAVAILABLE",
        "BINDING_STALE",
        "CONTROLLER_NOT_READY",
        "BINDING_DENIED_RECENTLY",
        "GPU_BUSY",
        "GPU_LOST",
        "LEDGER_CONFLICT",
        "LEDGER_UNAVAILABLE",
        "NODE_NO_EVIDENCE",
        "NODE_QUARANTINED",
        "NODE_REFUSED",
        "NODE_STALE",
        "POD_UNKNOWN",
        "QUOTA_EXCEEDED",
        "RESERVATION_CONFLICT",
        "RESERVATION_EXPIRED",
        "RESERVATION_PENDING",
    }
    assert (not verdict.refusals) == (code in waits)
    assert bool(verdict.warnings) == (code in waits)
    assert stage.decisions == [] if code in waits else len(stage.decisions) == 1


async def test_a_pod_that_waits_is_patched_once_and_told() -> None:
    verdict = await Stage(Ledger(given=BUSY)).ask(MUTATE, early())
    assert verdict.result == "patched"
    assert len(set(map(str, verdict.patch))) == len(verdict.patch)
    (warning,) = verdict.warnings
    assert warning == (
        "gpuwarden: GPU_BUSY Too few matching GPUs of the node are free: no GPU is reserved for the"
        " pod yet; it waits, and gets its GPUs when it is bound"
    )


WAITS = ": no GPU is reserved for the pod yet; it waits, and gets its GPUs when it is bound"


@pytest.mark.parametrize("code", [x for x in ReasonCode if is_passing(x)])
async def test_who_makes_a_pod_that_waits_learns_nothing_of_others_gpus(code: ReasonCode) -> None:
    found = "needs 2 GPUs, node has 8, 1 free, GPU-a is another pod's"
    stage = Stage(Ledger(given=Refusal(code, found)))
    is_own = code is ReasonCode.QUOTA_EXCEEDED
    text = found if is_own else EXPLANATIONS[code].cause.removesuffix(".")
    asked = (await stage.ask(MUTATE, early()), await stage.ask(MUTATE, early(), dry_run=True))
    for verdict in (*asked, await rehearse(stage, early())):
        assert verdict.warnings == (f"gpuwarden: {code} {text}{WAITS}",)
        assert len(verdict.warnings[0]) <= 256


async def test_by_affinity_a_pod_that_brings_its_reservation_needs_no_label() -> None:
    stage = Stage(rules=AdmissionRules(by_affinity=True))
    pod = early(name="train-0", uid="u")
    made = applied(pod, documents((await stage.ask(MUTATE, pod)).patch))
    assert "requirement-" not in str(made["spec"]["affinity"])
    assert made["spec"].get("schedulerName") == pod["spec"].get("schedulerName")
    assert codes(await stage.ask(VALIDATE, made)) == []


async def test_by_affinity_a_pod_that_waits_goes_where_its_label_is() -> None:
    rules = AdmissionRules(by_affinity=True)
    stage = Stage(Ledger(given=BUSY), rules=rules)
    pod = early(name="train-0", uid="u")
    verdict = await stage.ask(MUTATE, pod)
    made = applied(pod, documents(verdict.patch))
    assert "gpuwarden.node-restriction.kubernetes.io/requirement-" in str(made["spec"]["affinity"])
    assert await stage.ask(VALIDATE, made) == Verdict(result="admitted")
    del made["spec"]["affinity"]
    assert codes(await stage.ask(VALIDATE, made)) == ["BYPASS_UNINJECTED"]


async def test_who_is_refused_anyway_is_not_reserved_for() -> None:
    stage = Stage()
    assert codes(await stage.ask(MUTATE, new_pod(annotations=EARLY, hostPID=True))) == [
        "BYPASS_HOST_PID"
    ]
    assert stage.ledger is not None
    assert stage.ledger.asks == []


async def test_without_a_ledger_nothing_is_reserved() -> None:
    assert codes(await Stage(None).ask(MUTATE, early())) == ["LEDGER_UNAVAILABLE"]


async def test_who_does_not_ask_for_it_is_not_reserved_for() -> None:
    stage = Stage()
    await stage.ask(MUTATE, new_pod(annotations=UUIDS))
    await stage.ask(VALIDATE, patched(new_pod(annotations=UUIDS)))
    assert stage.ledger is not None
    assert (stage.ledger.asks, stage.ledger.taken) == ([], [])


# --- The pod takes what was reserved for it


async def test_a_pod_takes_its_reservation_with_its_name_uid_and_owner() -> None:
    stage = Stage()
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train", "uid": "o"}
    pod = await born(ownerReferences=[reference | {"controller": True}])
    assert await stage.ask(VALIDATE, pod) == Verdict(result="admitted")
    assert stage.ledger is not None
    assert stage.ledger.taken == [(GRANTED, PodRef("team-a", "train-0", "u", "o"))]
    (decision,) = stage.decisions
    assert (decision.step, decision.word, decision.pod) == ("validate", "admitted", "train-0")
    assert (decision.reservation, decision.gpus) == (ID, (GPU,))
    assert (decision.enforced, decision.reported) == (True, False)


async def test_what_was_taken_by_another_is_refused() -> None:
    stage = Stage(Ledger(against=BUSY))
    assert await stage.ask(VALIDATE, await born()) == Verdict((BUSY,), result="refused")
    assert stage.decisions[0].refusals == (BUSY,)


@pytest.mark.parametrize("missing", ["name", "uid"])
async def test_who_has_no_name_or_uid_yet_cannot_take_it(missing: str) -> None:
    stage = Stage()
    verdict = await stage.ask(VALIDATE, await born(**{missing: ""}))
    assert codes(verdict) == ["ADMISSION_FAILED"]
    assert stage.ledger is not None
    assert stage.ledger.taken == []


async def test_a_dry_run_takes_nothing() -> None:
    stage = Stage()
    assert await stage.ask(VALIDATE, await born(), dry_run=True) == Verdict(result="admitted")
    assert stage.ledger is not None
    assert stage.ledger.taken == []
    assert stage.decisions == []


async def test_a_pod_that_the_mutating_webhook_has_not_seen_has_nothing_to_take() -> None:
    stage = Stage()
    pod = patched(early(name="train-0", uid="u"))
    assert codes(await stage.ask(VALIDATE, pod)) == []
    assert codes(await Stage(None).ask(VALIDATE, pod)) == ["BYPASS_UNINJECTED"]
    named = patched(on_its_node(name="train-0", uid="u"))
    assert codes(await stage.ask(VALIDATE, named)) == ["BYPASS_NODE_NAME"]
    assert stage.ledger is not None
    assert stage.ledger.taken == []


async def test_who_is_refused_anyway_takes_nothing() -> None:
    stage, pod = Stage(), await born()
    pod["spec"]["hostPID"] = True
    assert codes(await stage.ask(VALIDATE, pod)) == ["BYPASS_HOST_PID"]
    assert stage.ledger is not None
    assert stage.ledger.taken == []


# --- Report-only mode


async def test_report_only_mode_asks_what_it_would_come_to() -> None:
    stage = Stage(report=True)
    assert await stage.ask(VALIDATE, early(name="train-0", uid="u")) == Verdict(result="admitted")
    assert stage.ledger is not None
    (ask,) = stage.ledger.asks
    assert ask.dry_run
    assert stage.ledger.taken == []


async def test_report_only_mode_tells_what_would_be_refused_and_not_what_would_wait() -> None:
    stage = Stage(Ledger(given=Refusal(ReasonCode.GPU_NO_MATCH, "none")), report=True)
    verdict = await stage.ask(VALIDATE, early(name="train-0", uid="u"))
    assert (verdict.refusals, verdict.result) == ((), "reported")
    assert verdict.warnings == ("would be denied: gpuwarden: GPU_NO_MATCH none",)
    (decision,) = stage.decisions
    assert (decision.word, decision.reported) == ("reported", True)
    stage = Stage(Ledger(given=BUSY), report=True)
    verdict = await stage.ask(VALIDATE, early(name="train-0", uid="u"))
    assert verdict == Verdict(result="admitted")


# --- Other requests


async def test_a_patch_that_is_empty_leaves_the_pod_untouched() -> None:
    pod = patched(new_pod())
    assert await Stage().ask(MUTATE, pod) == Verdict(result="untouched")


async def test_whoever_creates_a_pod_hears_what_its_containers_will_not_have() -> None:
    env = Policy(default_mode=NodeMode.ENV)
    pod = new_pod(container(env=[variable("CUDA_VISIBLE_DEVICES", "0")]), annotations=UUIDS)
    verdict = await Stage(policy=lambda: env).ask(MUTATE, pod)
    assert verdict.warnings == (
        "gpuwarden: container main: CUDA_VISIBLE_DEVICES is replaced by what the pod is given",
    )
    for namespace in ("team-a", "team-b"):
        nothing = patched(new_pod(annotations=LEVEL), enforced=namespace == "team-a")
        verdict = await Stage(policy=lambda: env).ask(VALIDATE, nothing, namespace=namespace)
        text = (
            "gpuwarden: the pod asks for no GPU and gets none; to get one, annotate the pod"
            ' with gpuwarden.dev/gpu-count: "1" (env nodes)'
        )
        assert verdict == Verdict(warnings=(text,), result="admitted")
    verdict = await Stage(report=True).ask(VALIDATE, new_pod(annotations=LEVEL))
    assert verdict.result == "admitted"
    assert len(verdict.warnings) == 1
    assert (await Stage().ask(VALIDATE, patched(new_pod()))).warnings == ()


async def test_what_no_declared_node_will_ever_serve_is_refused() -> None:
    pod, env = patched(new_pod(container(gpus=1))), Policy(default_mode=NodeMode.ENV)
    assert codes(await Stage().ask(VALIDATE, pod)) == []
    assert codes(await Stage(policy=lambda: None).ask(VALIDATE, pod)) == []
    assert codes(await Stage(policy=lambda: env).ask(VALIDATE, pod)) == ["NODE_MODE"]


async def test_before_anything_is_reserved() -> None:
    stage = Stage(policy=Policy)
    assert codes(await stage.ask(MUTATE, early())) == ["EXACT_UNAVAILABLE"]
    assert stage.ledger is not None
    assert stage.ledger.asks == []


async def test_without_settings_violations_are_refused() -> None:
    world = AdmissionWorld({"team-a"})
    verdict = await world.webhooks().handlers()[VALIDATE](
        request_of(review_json(new_pod(hostPID=True)))
    )
    assert "BYPASS_HOST_PID" in codes(verdict)
    assert verdict.result == "refused"


async def test_other_resources_are_a_fault_of_the_webhooks_rules() -> None:
    jobs = {"group": "batch", "version": "v1", "resource": "jobs"}
    (refusal,) = (await Stage().ask(MUTATE, new_pod(), resource=jobs)).refusals
    assert refusal.detail == "jobs, expected pods: correct the webhook's rules"


async def test_a_request_without_its_pod_is_refused() -> None:
    for absent in ({"object": None}, {"object": new_pod(), "operation": "UPDATE"}):
        request = {"subresource": "ephemeralcontainers"} if "operation" in absent else {}
        (refusal,) = (await Stage().ask(MUTATE, new_pod(), **request, **absent)).refusals
        assert refusal.code is ReasonCode.REQ_INVALID
        assert refusal.detail == "not a Pod: there is none in the request"


# --- The record of a decision

DECISION = AdmissionDecision(
    step="validate",
    namespace="team-a",
    pod="train-0",
    owner=Owner("apps/v1", "ReplicaSet", "train", "o"),
    user="jane",
    refusals=(BUSY,),
    enforced=True,
    reported=False,
)


def test_the_record_of_a_decision() -> None:
    assert admission_record(DECISION) == Record(
        kind=RecordKind.ADMISSION_DECISION,
        actor="jane",
        subject="pod/team-a/train-0",
        decision="refused",
        codes=("GPU_BUSY",),
        refs={
            "step": "validate",
            "enforced": True,
            "owner": "ReplicaSet/train",
            "reasons": ["all are taken"],
        },
    )


def test_a_user_or_an_owner_can_be_missing() -> None:
    record = admission_record(replace(DECISION, user="", owner=None))
    assert record.actor == "unknown"
    assert record.refs["owner"] is None


def test_what_was_reserved_is_in_the_record() -> None:
    record = admission_record(replace(DECISION, reservation=ID, gpus=(GPU,)))
    assert (record.refs["reservation"], record.refs["gpus"]) == (ID, [GPU])


def test_names_are_cut_to_the_longest_of_the_api() -> None:
    long = "x" * 300
    made = replace(
        DECISION, namespace=long, pod=long, user=long, owner=Owner(long, long, long, long)
    )
    record, cut = admission_record(made), "x" * 253
    assert record.actor == cut
    assert record.subject == f"pod/{cut}/{cut}"
    assert record.refs["owner"] == f"{cut}/{cut}"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"refusals": ()}, "admitted"),
        ({"refusals": (), "reported": True}, "admitted"),
        ({}, "refused"),
        ({"reported": True}, "reported"),
    ],
)
def test_a_decision_in_one_word(change: dict[str, Any], word: str) -> None:
    assert replace(DECISION, **change).word == word


# --- What both would say, before there is a pod


async def rehearse(stage: Stage, pod: Document, namespace: str = "team-a") -> Judged:
    return await stage.webhooks().rehearse(admitted(pod), namespace)


async def test_a_rehearsal_asks_the_ledger_and_leaves_nothing() -> None:
    stage = Stage()
    judged = await rehearse(stage, early())
    assert (judged.refusals, judged.early is None) == ((), False)
    assert stage.ledger is not None
    (ask,) = stage.ledger.asks
    assert (ask.namespace, ask.enforced, ask.dry_run, ask.granted) == ("team-a", True, True, None)
    assert ask.request == "rehearsal"
    assert (stage.ledger.taken, stage.decisions) == ([], [])
    await rehearse(stage, early(), "team-b")
    assert stage.ledger.asks[1].enforced is False


async def test_a_rehearsal_knows_what_a_pod_brings() -> None:
    stage = Stage()
    judged = await rehearse(stage, early(annotations=EARLY | SAID))
    assert judged.refusals == ()
    assert stage.ledger is not None
    assert [x.granted for x in stage.ledger.asks] == [GRANTED]
    stand_in = SAID | {"gpuwarden.dev/reservation-id": DRY_RUN_ID}
    assert (await rehearse(stage, early(annotations=EARLY | stand_in))).refusals == ()


async def test_a_rehearsal_refuses_what_only_gpuwarden_writes() -> None:
    judged = await rehearse(Stage(), new_pod(annotations=UUIDS | SAID))
    assert {x.code for x in judged.refusals} == {ReasonCode.BYPASS_ANNOTATION}


async def test_a_rehearsal_says_what_the_ledger_would_refuse() -> None:
    none = Refusal(ReasonCode.GPU_NO_MATCH, "none")
    judged = await rehearse(Stage(Ledger(given=none)), early())
    assert judged.refusals == (none,)
    assert judged.early is not None
    judged = await rehearse(Stage(Ledger(given=BUSY)), on_its_node())
    assert judged.refusals == (BUSY,)
    stage = Stage(Ledger(given=BUSY))
    judged = await rehearse(stage, early())
    assert judged.refusals == ()
    assert judged.warnings == (await stage.ask(MUTATE, early())).warnings
    judged = await rehearse(Stage(None), early())
    assert [x.code for x in judged.refusals] == [ReasonCode.LEDGER_UNAVAILABLE]


async def test_a_rehearsal_of_who_is_refused_anyway_asks_no_ledger() -> None:
    stage = Stage()
    judged = await rehearse(stage, new_pod(annotations=EARLY, hostPID=True))
    assert [x.code for x in judged.refusals] == [ReasonCode.BYPASS_HOST_PID]
    assert stage.ledger is not None
    assert stage.ledger.asks == []


async def test_a_rehearsal_knows_what_the_patch_puts_right_and_what_not() -> None:
    flood = [variable("CUDA_VISIBLE_DEVICES", "0")] * 66
    for env, expected in ((flood[:65], []), (flood, [ReasonCode.BYPASS_UNINJECTED])):
        judged = await rehearse(Stage(), new_pod(container(env=env), annotations=UUIDS))
        assert [x.code for x in judged.refusals] == expected
        assert len(judged.warnings) == (0 if expected else 1)
    open_ = new_pod(container(env=[variable("NVIDIA_VISIBLE_DEVICES", "all")]), hostPID=True)
    judged = await rehearse(Stage(), open_)
    assert [x.code.value for x in judged.refusals] == ["BYPASS_ENV", "BYPASS_HOST_PID"]
    assert not (await rehearse(Stage(), open_, "team-b")).concerned


async def test_a_rehearsal_knows_the_policy_and_warns() -> None:
    env = Stage(policy=lambda: Policy(default_mode=NodeMode.ENV))
    judged = await rehearse(env, new_pod(container(gpus=1)))
    assert [x.code for x in judged.refusals] == [ReasonCode.NODE_MODE]
    judged = await rehearse(env, new_pod(annotations=LEVEL))
    assert judged.refusals == ()
    assert env.ledger is not None
    assert env.ledger.asks == []
    assert [x.partition(";")[0] for x in judged.warnings] == [
        "gpuwarden: the pod asks for no GPU and gets none"
    ]
    judged = await rehearse(Stage(policy=Policy), early())
    assert [x.code for x in judged.refusals] == [ReasonCode.EXACT_UNAVAILABLE]


async def test_a_rehearsal_of_a_malformed_pod() -> None:
    judged = await rehearse(Stage(), new_pod(annotations={"gpuwarden.dev/min-level": "?"}))
    assert [x.code for x in judged.refusals] == [ReasonCode.REQ_INVALID]
