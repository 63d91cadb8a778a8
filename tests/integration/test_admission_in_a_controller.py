"""The webhooks of a whole controller: open where they are configured, told where people look."""

from typing import Any

from tests.builders.admission_reviews import patch_of
from tests.builders.admitted_pods import new_pod, variable
from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import eventually

VOID = variable("NVIDIA_VISIBLE_DEVICES", "void")


async def test_enforced_namespaces_come_from_the_api_and_decisions_go_into_the_log(
    cluster: FakeCluster,
) -> None:
    async with cluster.webhooks(scheduling__schedulerNames="mine,gpu-scheduler") as there:
        assert not [x for x in await there.controller.warnings() if x.startswith("report-only")]
        await there.know_namespaces()
        pod = new_pod(annotations={"gpuwarden.dev/min-level": "L0"})
        patch = patch_of(await there.ask("/mutate/pods", pod, "plain"))
        assert patch == [
            {"op": "add", "path": "/spec/containers/0/env", "value": [VOID]},
            {"op": "add", "path": "/spec/schedulerName", "value": "mine"},
        ]
        assert len(patch_of(await there.ask("/mutate/pods", pod, "strict"))) == 3
        named = new_pod(annotations=pod["metadata"]["annotations"], schedulerName="gpu-scheduler")
        assert patch_of(await there.ask("/mutate/pods", named, "plain")) == patch[:1]
        named["spec"]["containers"][0]["env"] = [VOID]
        answer = await there.ask("/validate/pods", named, "plain")
        assert answer["response"]["allowed"] is True
        refused = await there.ask("/validate/pods", new_pod(hostPID=True), "strict")
        assert refused["response"]["allowed"] is False
        controller = there.controller
        labels = 'code="BYPASS_HOST_PID",decision="refused"'
        assert await controller.metric(f"gpuwarden_admission_refusals_total{{{labels}}}") == 1
        labels = 'path="/validate/pods",result="refused"'
        assert await controller.metric(f"gpuwarden_admission_requests_total{{{labels}}}") == 1

        async def written() -> list[dict[str, Any]] | None:
            found = [x for x in controller.records() if x["kind"] == "admission.decision"]
            return [x for x in found if x["decision"] == "refused"] or None

        (record,) = await eventually(written, "the decision is in the audit log")
        assert (record["subject"], record["decision"]) == ("pod/strict/train-7d9f-*", "refused")
        assert record["codes"] == ["BYPASS_HOST_PID", "BYPASS_UNINJECTED"]
        assert record["actor"] == "jane"


async def test_report_only_lets_everything_in_and_says_it_in_events(cluster: FakeCluster) -> None:
    async with cluster.webhooks(enforcement="report") as there:
        assert [x for x in await there.controller.warnings() if x.startswith("report-only")]
        pod = new_pod(hostPID=True)
        pod["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "r",
                "uid": "u",
                "controller": True,
            }
        ]
        answer = await there.ask("/validate/pods", pod, "strict")
        assert answer["response"]["allowed"] is True
        (event,) = await cluster.events("PodWouldBeDenied")
        assert event["note"] == "gpuwarden: BYPASS_HOST_PID would be denied: hostPID is set"
        assert event["regarding"] == {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "r",
            "namespace": "strict",
            "uid": "u",
        }


async def test_without_certificates_there_are_no_webhooks(cluster: FakeCluster) -> None:
    async with cluster.controller() as here:
        assert here.addresses.admission == ""
