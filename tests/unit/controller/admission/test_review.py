import json
from typing import Any

import msgspec
import pytest

from controller.admission.pod_webhooks import AdmissionDecision, Owner, admission_record
from controller.admission.review import (
    AdmissionRequest,
    Operation,
    Requester,
    ResourceName,
    ReviewError,
    Verb,
    Verdict,
    decode_review,
    encode_answer,
    encode_unread,
)
from controller.kube.pods.events import Regarding, admission_notice
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admission_reviews import patch_of, request_of, review_json, review_of
from tests.builders.admitted_pods import UUIDS, container, documents, new_pod, patched, variable
from tests.fakes.admission import AdmissionWorld

# --- AdmissionReview on the wire: what is read, and that every answer is well-formed


def answer(verdict: Verdict, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        encode_answer(review_of({**review_json(new_pod()), **changes}), verdict)
    )
    return found


def test_a_request_is_read_and_its_object_left_as_it_is() -> None:
    pod = new_pod()
    found = review_of(review_json(pod, dry_run=True, name="a")).request
    assert (found.operation, found.namespace, found.name) == ("CREATE", "team-a", "a")
    assert (found.user_info.username, found.resource.resource) == ("jane", "pods")
    assert found.dry_run is True
    assert json.loads(bytes(found.object)) == pod


def test_a_requester_of_any_name_is_answered() -> None:
    """The API server bounds neither: who authenticates does."""
    long = {"username": "u" * 5000, "groups": ["g" * 5000]}
    found = review_of(review_json(new_pod(), userInfo=long))
    assert found.request.user_info.username == long["username"]
    assert json.loads(encode_answer(found, Verdict()))["response"]["uid"] == found.request.uid


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_the_answer_has_the_version_and_the_uid_of_the_question(version: str) -> None:
    found = answer(Verdict(), apiVersion=version)
    assert found == {
        "apiVersion": version,
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }


def test_a_patch_is_base64_of_json_patch() -> None:
    found = answer(Verdict(patch=(Operation(Verb.ADD, "/a~1b", "é"),)))
    assert found["response"]["allowed"] is True
    assert patch_of(found) == [{"op": "add", "path": "/a~1b", "value": "é"}]


STATUSES = {
    "REQ_INVALID": 400,
    "GPU_BUSY": 429,
    "GPU_LOST": 429,
    "LEDGER_CONFLICT": 429,
    "RESERVATION_PENDING": 429,
    "ADMISSION_FAILED": 500,
    "CONTROLLER_NOT_READY": 503,
    "LEDGER_UNAVAILABLE": 503,
    "AUDIT_UNAVAILABLE": 503,
}
"""All others: 403."""
REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@pytest.mark.parametrize("code", ReasonCode)
def test_a_refusal_says_its_code_and_why(code: ReasonCode) -> None:
    status = STATUSES.get(code.value, 403)
    refusals = (Refusal(code, "because"), Refusal(ReasonCode.BYPASS_CDI, "and"))
    response = answer(Verdict(refusals, patch=(Operation(Verb.REMOVE, "/a"),)))["response"]
    assert response["allowed"] is False
    assert "patch" not in response
    assert response["status"] == {
        "status": "Failure",
        "code": status,
        "reason": REASONS[status],
        "message": f"gpuwarden: {code} because; gpuwarden: BYPASS_CDI and",
    }
    codes = dict.fromkeys((code.value, "BYPASS_CDI"))
    assert response["auditAnnotations"] == {"codes": ",".join(codes)}


def test_texts_are_bounded() -> None:
    refusals = tuple(Refusal(ReasonCode.BYPASS_ENV, "x" * 300) for _ in range(50))
    response = answer(Verdict(refusals))["response"]
    assert len(response["status"]["message"]) == 2048
    assert response["auditAnnotations"]["codes"] == "BYPASS_ENV"
    warnings = answer(Verdict(warnings=("y" * 999,) * 99))["response"]["warnings"]
    assert [len(x) for x in warnings] == [256] * 8


def test_a_message_is_cut_only_where_it_is_too_long() -> None:
    head = "gpuwarden: BYPASS_ENV "
    for size in (2048, 2049):
        refusal = Refusal(ReasonCode.BYPASS_ENV, "x" * (size - len(head)))
        told = answer(Verdict((refusal,)))["response"]["status"]["message"]
        assert len(told) == 2048
        assert told.endswith("…") is (size > 2048)


def test_what_a_request_leaves_out_is_empty() -> None:
    bare = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}}
    found = review_of(bare).request
    assert found == AdmissionRequest(
        uid="u",
        resource=ResourceName(group="", version="", resource=""),
        sub_resource="",
        name="",
        namespace="",
        operation="",
        user_info=Requester(username="", groups=None),
        object=msgspec.Raw(b"null"),
        old_object=msgspec.Raw(b"null"),
        dry_run=None,
    )


@pytest.mark.parametrize(
    ("field", "most"),
    [("uid", 256), ("namespace", 1024), ("name", 1024), ("operation", 1024), ("subResource", 1024)],
)
def test_names_of_a_request_are_bounded(field: str, most: int) -> None:
    document = review_json(None)
    document["request"][field] = "x" * most
    assert review_of(document).request is not None
    document["request"][field] += "x"
    with pytest.raises(ReviewError, match=rf"request\.{field}"):
        review_of(document)


def test_the_shortest_uid_has_one_character() -> None:
    assert review_of(review_json(None, uid="u")).request.uid == "u"


def test_what_names_no_version_is_told_which_is_expected() -> None:
    with pytest.raises(ReviewError) as caught:
        decode_review(b"{}")
    assert str(caught.value) == (
        "not an AdmissionReview: /, expected admission.k8s.io/v1/AdmissionReview"
    )


def test_the_shape_is_told_without_quoting_anything() -> None:
    with pytest.raises(ReviewError) as caught:
        decode_review(b"[]")
    assert str(caught.value) == "not an AdmissionReview: Expected `object`, got `array`"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"a":' * 100_000, "no JSON"),
        (b"[]", "Expected `object`"),
        (b"{}", "expected admission.k8s.io/v1/AdmissionReview"),
        (
            msgspec.json.encode({**review_json(None), "apiVersion": "admission.k8s.io/v2"}),
            "admission.k8s.io/v2/AdmissionReview",
        ),
        (msgspec.json.encode({**review_json(None), "kind": "Pod"}), "admission.k8s.io/v1/Pod"),
        (msgspec.json.encode({**review_json(None), "request": None}), "no request"),
        (msgspec.json.encode(review_json(None, uid="")), "request.uid"),
        (msgspec.json.encode(review_json(None, uid=7)), "request.uid"),
        (msgspec.json.encode(review_json(None, namespace="n" * 1025)), "request.namespace"),
    ],
)
def test_what_is_no_review_is_an_error(body: bytes, expected: str) -> None:
    with pytest.raises(ReviewError) as caught:
        decode_review(body)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 200


def test_nulls_and_unknown_fields_of_the_api_are_fine() -> None:
    document = review_json(None, future={"a": 1})
    document["request"]["userInfo"]["groups"] = None
    document["request"]["dryRun"] = None
    found = review_of(document).request
    assert found.user_info.groups is None
    assert found.dry_run is None


# --- The handlers of /mutate/pods and /validate/pods: who is judged, what is told, what is left

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
    handler = world.webhooks(report=report).handlers()[path]
    return await handler(request_of(review_json(pod, **request)))


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
    assert codes(await ask(world, "/validate/pods/enforced", LOUD, **elsewhere)) == ["BYPASS_ENV"]
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
    assert "BYPASS_HOST_PID" in codes(await ask(world, "/validate/pods", pod))
    plain = new_pod(hostPID=True)
    assert "BYPASS_HOST_PID" in codes(await ask(world, "/validate/pods", plain, **kubelet))


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
    assert codes(await ask(world, "/validate/pods", new, **update)) == ["BYPASS_UNINJECTED"]
    new["spec"]["ephemeralContainers"][1] = container("new", securityContext={"privileged": True})
    found = codes(await ask(world, "/validate/pods", new, **update))
    assert found == ["BYPASS_EPHEMERAL", "BYPASS_UNINJECTED"]


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
        verdict = await ask(world, path, pod, **request)
        assert (codes(verdict), verdict.result) == (["REQ_INVALID"], "refused")
    shown = await ask(world, path, None, report=True)
    assert (codes(shown), shown.result) == ([], "reported")


async def test_report_only_says_everything_and_does_nothing(world: AdmissionWorld) -> None:
    assert await ask(world, "/mutate/pods", new_pod(), report=True) == Verdict()
    assert await ask(world, "/mutate/pods", BAD, report=True) == Verdict()
    assert (await ask(world, "/validate/pods", new_pod(), report=True)).result == "admitted"
    verdict = await ask(world, "/validate/pods", LOUD, report=True)
    assert (codes(verdict), verdict.result) == ([], "reported")
    (warning,) = verdict.warnings
    assert warning.startswith("would be denied: gpuwarden: BYPASS_ENV container main sets")
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
    assert (record.decision, record.codes) == ("refused", ("BYPASS_HOST_PID",))
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
    assert (owned.reason, owned.code) == ("PodWouldBeDenied", "BYPASS_PRIVILEGED")
    assert owned.note == "would be denied: container main is privileged (and 1 more)"


def test_the_record_of_an_early_reservation_names_it_and_its_gpus() -> None:
    made = AdmissionDecision(
        step="mutate",
        namespace="team-a",
        pod="train-0",
        owner=None,
        user="jane",
        refusals=(),
        enforced=True,
        reported=False,
        reservation="v1.k1.a",
        gpus=("GPU-a", "GPU-b"),
    )
    record = admission_record(made)
    assert record.decision == "admitted"
    assert record.refs["reservation"] == "v1.k1.a"
    assert record.refs["gpus"] == ["GPU-a", "GPU-b"]


def test_what_could_not_be_read_is_answered_as_a_review_that_denies() -> None:
    assert json.loads(encode_unread(400, "not JSON")) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": "",
            "allowed": False,
            "status": {"status": "Failure", "code": 400, "message": "not JSON"},
        },
    }
