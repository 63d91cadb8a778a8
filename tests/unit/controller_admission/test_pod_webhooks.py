"""The handlers of /mutate/pods and /validate/pods: who is judged, what is told, what is left."""

from typing import Any

import pytest

from controller.admission.review import Owner, Verdict, admission_record, pod_handlers
from controller.kube.events import Regarding, admission_notice
from gpuwarden.audit.record import RecordKind
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import UUIDS, container, documents, new_pod, patched, variable
from tests.fakes.admission import AdmissionWorld

LOUD = new_pod(container(env=[variable("NVIDIA_VISIBLE_DEVICES", "all")]))
BAD = new_pod(annotations={"gpuwarden.dev/min-level": "?"})
REQUESTS_NOT_OURS: list[dict[str, Any]] = [
    {"namespace": "team-b"},
    {"operation": "UPDATE"},
    {"operation": "DELETE"},
    {"subresource": "eviction"},
    {"operation": "UPDATE", "subresource": "status"},
    {"operation": "UPDATE", "subresource": "resize"},
]
MIRROR = {"kubernetes.io/config.mirror": "x"}


async def ask(
    world: AdmissionWorld,
    path: str,
    pod: dict[str, Any] | None,
    *,
    report: bool = False,
    **request: Any,
) -> Verdict:
    handler = pod_handlers(world.ports(report=report))[path]
    return await handler.decide(request_of(review_json(pod, **request)))


def codes(verdict: Verdict) -> list[str]:
    return [refusal.code.value for refusal in verdict.refusals]


@pytest.fixture
def world() -> AdmissionWorld:
    return AdmissionWorld({"team-a"})


async def test_both_spellings_of_the_path_patch(world: AdmissionWorld) -> None:
    for path in ("/mutate", "/mutate/pods", "/mutate/pods/enforced"):
        verdict = await ask(world, path, new_pod(annotations=UUIDS))
        assert (verdict.result, verdict.refusals) == ("patched", ())
        assert documents(verdict.patch)[0]["path"] == "/spec/containers/0/env"
    again = await ask(world, "/mutate", patched(new_pod(annotations=UUIDS)))
    assert again == Verdict()


async def test_the_namespace_is_the_requests(world: AdmissionWorld) -> None:
    pod = new_pod()
    del pod["metadata"]["namespace"]
    assert (await ask(world, "/mutate/pods", pod)).patch
    assert not (await ask(world, "/mutate/pods", pod, namespace="team-b")).patch


async def test_what_the_api_server_says_about_a_namespace_is_enough(world: AdmissionWorld) -> None:
    """Our own copy of a namespace that was labelled just now may lag behind."""
    elsewhere: dict[str, Any] = {"namespace": "labelled-just-now"}
    assert (await ask(world, "/mutate/pods/enforced", new_pod(), **elsewhere)).patch
    assert codes(await ask(world, "/validate/pods/enforced", LOUD, **elsewhere)) == ["DOOR_ENV"]
    assert codes(await ask(world, "/validate/pods", LOUD, **elsewhere)) == []


async def test_faults_are_refused_by_both_and_noted(world: AdmissionWorld) -> None:
    for path in ("/mutate/pods", "/validate/pods"):
        verdict = await ask(world, path, BAD, namespace="team-b")
        assert (codes(verdict), verdict.result) == (["REQ_INVALID"], "refused")
    assert [(x.step, x.word) for x in world.decisions] == [
        ("mutate", "refused"),
        ("validate", "refused"),
    ]


async def test_a_pod_that_is_let_in_is_noted_once(world: AdmissionWorld) -> None:
    await ask(world, "/mutate/pods", new_pod())
    verdict = await ask(world, "/validate/pods", patched(new_pod()))
    assert (verdict.result, verdict.refusals) == ("admitted", ())
    (decision,) = world.decisions
    assert (decision.word, decision.pod, decision.user) == ("admitted", "train-7d9f-*", "jane")


async def test_what_is_no_business_of_ours_leaves_nothing(world: AdmissionWorld) -> None:
    for path in ("/mutate/pods", "/validate/pods"):
        for request in REQUESTS_NOT_OURS:
            assert await ask(world, path, LOUD, **request) == Verdict()
    assert world.decisions == []


async def test_a_dry_run_is_answered_alike_and_leaves_nothing(world: AdmissionWorld) -> None:
    for path, pod in (
        ("/mutate/pods", BAD),
        ("/mutate/pods", new_pod()),
        ("/validate/pods", LOUD),
        ("/validate/pods", patched(new_pod())),
    ):
        dry = await ask(world, path, pod, dry_run=True)
        assert world.decisions == []
        assert dry == await ask(world, path, pod)
        world.decisions.clear()


async def test_a_static_pods_mirror_is_let_be(world: AdmissionWorld) -> None:
    pod = new_pod(annotations=MIRROR, hostPID=True)
    kubelet: dict[str, Any] = {
        "userInfo": {"username": "system:node:a", "groups": ["system:nodes"]}
    }
    assert await ask(world, "/validate/pods", pod, **kubelet) == Verdict()
    assert await ask(world, "/mutate/pods", pod, **kubelet) == Verdict()
    assert "DOOR_HOST_PID" in codes(await ask(world, "/validate/pods", pod))
    plain = new_pod(hostPID=True)
    assert "DOOR_HOST_PID" in codes(await ask(world, "/validate/pods", plain, **kubelet))


async def test_ephemeral_containers(world: AdmissionWorld) -> None:
    old = new_pod(ephemeralContainers=[container("old", securityContext={"privileged": True})])
    new = new_pod(ephemeralContainers=[*old["spec"]["ephemeralContainers"], container("new")])
    update: dict[str, Any] = {
        "operation": "UPDATE",
        "subresource": "ephemeralcontainers",
        "old": old,
    }
    verdict = await ask(world, "/mutate/pods", new, **update)
    (operation,) = documents(verdict.patch)
    assert operation["path"] == "/spec/ephemeralContainers/1/env"
    assert codes(await ask(world, "/validate/pods", new, **update)) == ["DOOR_UNINJECTED"]
    new["spec"]["ephemeralContainers"][1] = container("new", securityContext={"privileged": True})
    found = codes(await ask(world, "/validate/pods", new, **update))
    assert found == ["DOOR_EPHEMERAL", "DOOR_UNINJECTED"]


@pytest.mark.parametrize("path", ["/mutate/pods", "/validate/pods"])
async def test_what_cannot_be_read_is_refused(world: AdmissionWorld, path: str) -> None:
    jobs: dict[str, Any] = {"resource": {"group": "batch", "version": "v1", "resource": "jobs"}}
    ephemeral: dict[str, Any] = {"operation": "UPDATE", "subresource": "ephemeralcontainers"}
    broken: dict[str, Any] = {"spec": {"containers": 3}}
    bare: dict[str, Any] = {"metadata": {"annotations": UUIDS}}
    for pod, request in (
        (new_pod(), jobs),
        (None, {}),
        (broken, {}),
        (bare, {}),
        (new_pod(), ephemeral),
    ):
        assert codes(await ask(world, path, pod, **request)) == ["REQ_INVALID"]
    shown = await ask(world, path, None, report=True)
    assert (codes(shown), shown.result) == ([], "reported")


async def test_report_only_says_everything_and_does_nothing(world: AdmissionWorld) -> None:
    assert await ask(world, "/mutate/pods", new_pod(), report=True) == Verdict()
    assert await ask(world, "/mutate/pods", BAD, report=True) == Verdict()
    assert (await ask(world, "/validate/pods", new_pod(), report=True)).result == "admitted"
    verdict = await ask(world, "/validate/pods", LOUD, report=True)
    assert (codes(verdict), verdict.result) == ([], "reported")
    (warning,) = verdict.warnings
    assert warning.startswith("would be denied: gpuwarden: DOOR_ENV container main sets")
    assert [x.word for x in world.decisions] == ["admitted", "reported"]


async def test_the_record_names_pod_user_owner_and_codes(world: AdmissionWorld) -> None:
    pod = new_pod(hostPID=True)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}
    pod["metadata"]["ownerReferences"] = [
        {**owner, "name": "other"},
        {**owner, "controller": True},
    ]
    await ask(world, "/validate/pods", patched(pod))
    (decision,) = world.decisions
    assert decision.owner == Owner("apps/v1", "ReplicaSet", "r", "u")
    record = admission_record(decision)
    assert record.kind is RecordKind.ADMISSION_DECISION
    assert (record.actor, record.subject) == ("jane", "pod/team-a/train-7d9f-*")
    assert (record.decision, record.codes) == ("refused", ("DOOR_HOST_PID",))
    assert record.refs["owner"] == "ReplicaSet/r"
    assert admission_notice(decision) is None


async def test_a_report_is_an_event_where_people_look(world: AdmissionWorld) -> None:
    pod = new_pod(container(securityContext={"privileged": True}), hostPID=True)
    await ask(world, "/validate/pods", pod, report=True, name="bare")
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    ]
    await ask(world, "/validate/pods", pod, report=True)
    bare, owned = (admission_notice(x) for x in world.decisions)
    assert bare is not None
    assert owned is not None
    assert bare.regarding == Regarding("Pod", "bare", "", "team-a")
    assert owned.regarding == Regarding("Job", "j", "u", "team-a", "batch/v1")
    assert (owned.reason, owned.code) == ("PodWouldBeDenied", "DOOR_PRIVILEGED")
    assert owned.note == "would be denied: container main is privileged (and 1 more)"
