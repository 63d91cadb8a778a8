"""The policy as custom resources on a real API server, with the rights of deploy/."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from controller.kube.api.cache import Pace
from controller.kube.objects.policies import ClusterPolicy
from controller.policies.file import PolicyChange, decode_policy
from controller.policy import Policy
from gpuwarden.clock import SystemClock
from gpuwarden.policy.objects import CLASS, OBJECT_VERSION, POLICY
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client
from tests.e2e.lab.api import Api, ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.installation import apply
from tests.e2e.product.service_account import as_in_a_pod, token_of_controller
from tests.fakes.eventually import eventually

PATHS = {
    POLICY: f"/apis/{OBJECT_VERSION}/attestationpolicies",
    CLASS: f"/apis/{OBJECT_VERSION}/attestationclasses",
}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "policy.md"
HASH = "v1:sha256:" + "a" * 64
GOOD_CLASS = {"hashes": [{"hash": HASH}]}


@pytest.fixture(scope="module")
def served(lab: Lab) -> Api:
    """The API with our custom resources."""
    apply(lab, "kustomize/base")
    until("they are served", lambda: all(_answers(lab.api, path) for path in PATHS.values()))
    return lab.api


@pytest.fixture
def objects(served: Api) -> Iterator[Api]:
    """None of them, and none afterwards."""
    yield served
    for path in PATHS.values():
        for item in served.get(path)["items"]:
            served.delete(f"{path}/{item['metadata']['name']}")


@pytest.fixture
async def policy(lab: Lab, objects: Api, tmp_path: Path) -> AsyncIterator[ClusterPolicy]:
    """As the controller's own account."""
    del objects
    access = as_in_a_pod(lab, tmp_path, token_of_controller(lab, {}))
    api, transport = api_client(access, SystemClock())
    made = ClusterPolicy(
        api,
        clock=SystemClock(),
        instruments=Instruments(Process.CONTROLLER, "test"),
        leads=lambda: True,
        jitter=lambda: 0.5,
        pace=Pace(pause_factor=0.2),
    )
    coroutines = [*(x.follow() for x in made.watchers.values()), made.run(0.1)]
    tasks = [asyncio.create_task(x) for x in coroutines]
    yield made
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.close()


class TestSchema:
    @pytest.mark.parametrize(
        "spec",
        [
            {"minLevel": "L9"},
            {"defaultMode": "none"},
            {"allowedHashes": []},
            {"allowedHashes": ["sha256:aa"]},
            {"attestors": {}},
            {"attestors": {"k8s_psat": {"images": ["agent:1.0"]}}},
            {"attestors": {"k8s_psat": {"selectors": ["k8s ns"]}}},
            {"labels": {"assign": "mig=false"}},
            {"labels": {"-": "mig=false"}},
            {"labels": {"x" * 60: "mig=false"}},
            {"pools": [{"mode": "env"}]},
            {"drivers": {"allowed": []}},
            {"processesCountAsUse": "no"},
        ],
        ids=str,
    )
    def test_a_wrong_policy_does_not_get_in(self, objects: Api, spec: Document) -> None:
        with pytest.raises(ApiError) as found:
            _create(objects, POLICY, "cluster", spec)
        assert found.value.status == 422

    @pytest.mark.parametrize(
        "spec",
        [
            {},
            {"hashes": []},
            {"hashes": [{"hash": HASH.upper()}]},
            {"hashes": [{"hash": HASH, "notAfter": "tomorrow"}]},
            {"hashes": [{"hash": HASH, "notAfter": "2026-01-01T00:00:00"}]},
            {
                "hashes": [
                    {
                        "hash": HASH,
                        "notBefore": "2026-01-01T00:00:00Z",
                        "notAfter": "2026-01-01T01:00:00+01:00",
                    }
                ]
            },
            {**GOOD_CLASS, "minLevel": ""},
        ],
        ids=str,
    )
    def test_nor_does_a_wrong_class(self, objects: Api, spec: Document) -> None:
        with pytest.raises(ApiError) as found:
            _create(objects, CLASS, "h100", spec)
        assert found.value.status == 422

    def test_there_is_one_policy(self, objects: Api) -> None:
        with pytest.raises(ApiError, match="named cluster"):
            _create(objects, POLICY, "other", {})
        _create(objects, POLICY, "cluster", {})

    @pytest.mark.parametrize("kind", [POLICY, CLASS])
    def test_the_schema_is_structural(self, served: Api, kind: str) -> None:
        name = f"{PATHS[kind].rpartition('/')[2]}.gpuwarden.dev"
        crd = served.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        conditions = {x["type"]: x["status"] for x in crd["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"

    def test_people_see_what_is_accepted(self, lab: Lab, objects: Api) -> None:
        _create(objects, POLICY, "cluster", {"minLevel": "L1", "defaultMode": "env"})
        condition = {
            "type": "Accepted",
            "status": "False",
            "reason": "Refused",
            "message": "because",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status = {"status": {"conditions": [condition], "policyDigest": "d" * 64}}
        objects.patch(f"{PATHS[POLICY]}/cluster/status", status)
        row = _row(lab, "gwpolicy")
        assert row["NAME"] == "cluster"
        assert (row["MIN-LEVEL"], row["ACCEPTED"], row["MESSAGE"]) == ("L1", "False", "because")


async def test_the_page_s_example_is_the_file_s_policy(objects: Api, policy: ClusterPolicy) -> None:
    """What docs/reference/policy.md shows as a file and as objects is one and the same."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = next(x for x in blocks if "kind: Policy\n" in x)
    documents = next(list(yaml.safe_load_all(x)) for x in blocks if f"kind: {POLICY}\n" in x)
    for document in documents:
        await asyncio.to_thread(
            _create, objects, document["kind"], document["metadata"]["name"], document["spec"]
        )
    wanted = decode_policy(file.encode())

    async def taken() -> bool | None:
        await policy.poll()
        found = policy.current
        return (found is not None and set(found.classes) == set(wanted.classes)) or None

    await eventually(taken, "the example is in force")
    assert policy.current is not None
    for name in ("classes", "min_level", "denied_drivers", "allowed_vbios", "denied_keys"):
        assert getattr(policy.current, name) == getattr(wanted, name), name
    assert (policy.current.labels, policy.current.pools) == (wanted.labels, wanted.pools)


async def test_a_wrong_change_is_refused_and_says_so_and_the_last_policy_stays(
    objects: Api, policy: ClusterPolicy
) -> None:
    await asyncio.to_thread(_create, objects, CLASS, "h100", GOOD_CLASS)
    await asyncio.to_thread(_create, objects, POLICY, "cluster", {"minLevel": "L1"})
    good = await _policy_of(policy)
    first = await _said(objects, POLICY, "cluster", "True", 1)
    assert (await _said(objects, CLASS, "h100", "True", 1))["reason"] == "InForce"
    digest = objects.get(f"{PATHS[POLICY]}/cluster")["status"]["policyDigest"]
    assert digest == good.digest
    since = datetime.fromisoformat(first["lastTransitionTime"])
    assert abs((datetime.now(UTC) - since).total_seconds()) < 300

    unknown = {"spec": {"drvers": {"denied": ["550.54.15"]}}}
    await asyncio.to_thread(objects.patch, f"{PATHS[POLICY]}/cluster", unknown)
    change = await _change(policy)
    assert change.policy is None
    assert policy.current is good
    refused = await _said(objects, POLICY, "cluster", "False", 2)
    assert refused["message"].startswith("AttestationPolicy/cluster: spec.drvers: ")
    assert (await _said(objects, CLASS, "h100", "True", 1))["reason"] == "InForce"

    await asyncio.to_thread(objects.patch, f"{PATHS[POLICY]}/cluster", {"spec": {"drvers": None}})
    assert (await _policy_of(policy)).digest == good.digest
    again = await _said(objects, POLICY, "cluster", "True", 3)
    assert "message" in again

    await asyncio.to_thread(objects.delete, f"{PATHS[POLICY]}/cluster")
    change = await _change(policy)
    assert "got nothing" in str(change.findings[0])
    assert policy.current is not None


def _create(api: Api, kind: str, name: str, spec: Document) -> Document:
    return api.post(
        PATHS[kind],
        {"apiVersion": OBJECT_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec},
    )


def _answers(api: Api, path: str) -> bool:
    try:
        return api.found(path) is not None
    except ApiError:
        return False


def _row(lab: Lab, kind: str) -> dict[str, str]:
    """The only object as `kubectl get --output wide` shows it."""
    command = [str(lab.site.programs["kubectl"]), f"--kubeconfig={lab.kubeconfig}", "get", kind]
    cache = f"--cache-dir={lab.folder / 'kubectl'}"
    done = subprocess.run([*command, cache, "--output=wide"], capture_output=True, check=True)
    head, row = (re.split(r"  +", x.strip()) for x in done.stdout.decode().splitlines())
    return dict(zip(head, row, strict=True))


async def _change(policy: ClusterPolicy) -> PolicyChange:
    return await eventually(policy.poll, "a change")


async def _policy_of(policy: ClusterPolicy) -> Policy:
    """The next one that is right."""
    while (change := await _change(policy)).policy is None:
        pass
    return change.policy


async def _said(api: Api, kind: str, name: str, status: str, generation: int) -> Document:
    async def there() -> Document | None:
        found = await asyncio.to_thread(api.get, f"{PATHS[kind]}/{name}")
        for condition in found.get("status", {}).get("conditions", []):
            if (condition["status"], condition["observedGeneration"]) == (status, generation):
                return dict(condition)
        return None

    return await eventually(there, f"{kind} {name} is told {status} for {generation}")
