"""The admission policies of deploy/policy on a real API server, with no process of ours running.

What they refuse, and that what Kubernetes itself does with pods and namespaces goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.claims.cgroup import pod_uid
from controller.placement.keys import (
    MANAGED_TAINT,
    MAP,
    ORDINAL,
    ORDINAL_KEYS,
    REQUIRED_HASH,
    SEED_REQUIRED_HASH,
)
from tests.builders.hostile_pods import DEVICE_KEYS
from tests.e2e.lab.api import APPLY, STRATEGIC, Api, ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import PROBE, Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.installation import account
from tests.e2e.product.policies import (
    DRY,
    ENFORCE,
    POLICIES,
    Outcome,
    Policies,
    binding,
    may_manage,
    outcome,
    people,
    person,
)

pytestmark = pytest.mark.usefixtures("policies")
NAMESPACES = "/api/v1/namespaces"
PLAIN, ENFORCED = "policy-plain", "policy-enforced"
NODE = "policy-node"
WILDCARD = {"operator": "Exists"}
WRITTEN = {
    "gpuwarden.dev/gpu-uuids-assigned": "GPU-1",
    REQUIRED_HASH: "v1:sha256:" + "a" * 64,
    SEED_REQUIRED_HASH: "v1:sha256:" + "a" * 64,
    MAP: "0=n:0",
    "fudo.org/gpu.uuid": "GPU-1",
}
LABELS = {
    "gpuwarden.dev/gpu.big": "true",
    "fudo.org/gpu.big": "true",
    **{key: "0" for key in ORDINAL_KEYS if key != ORDINAL},
}


@pytest.fixture(scope="module")
def tenant_and_warden(lab: Lab) -> Iterator[tuple[Api, Api]]:
    with people(lab) as both:
        yield both


@pytest.fixture(scope="module")
def tenant(tenant_and_warden: tuple[Api, Api]) -> Api:
    return tenant_and_warden[0]


@pytest.fixture(scope="module")
def warden(tenant_and_warden: tuple[Api, Api]) -> Api:
    return tenant_and_warden[1]


@pytest.fixture(scope="module")
def plain(lab: Lab, tenant: Api) -> Iterator[Namespace]:
    yield from _namespace(lab, tenant, PLAIN, {})


@pytest.fixture(scope="module")
def enforced(lab: Lab, tenant: Api) -> Iterator[Namespace]:
    yield from _namespace(lab, tenant, ENFORCED, {ENFORCE: "true"})


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[str]:
    lab.fake_nodes.add(NODE)
    yield NODE
    lab.fake_nodes.delete(NODE)


@pytest.fixture(scope="module")
def veteran(plain: Namespace, node: str) -> str:
    """A Job from before the policies whose pod tolerates everything; its pod is bound."""
    plain.api.post(f"/apis/batch/v1/namespaces/{PLAIN}/jobs", _job("veteran", [WILDCARD]))
    name = _pod_of(plain, "veteran")
    assert plain.node_of(name) == node
    return name


@pytest.fixture(scope="module")
def policies(
    lab: Lab, tenant: Api, plain: Namespace, enforced: Namespace, veteran: str
) -> Iterator[Policies]:
    del veteran
    found = Policies(lab, tenant, plain, enforced)
    found.deny()
    yield found
    found.remove()


@pytest.fixture
def written(plain: Namespace, policies: Policies) -> Iterator[str]:
    """A pod with our keys, waiting forever."""
    del policies
    with _waiting(plain, "written", annotations=WRITTEN, labels=LABELS) as name:
        yield name


def test_every_expression_is_well_typed(lab: Lab) -> None:
    ours = [x for x in lab.api.get(POLICIES)["items"] if x["metadata"]["name"].startswith("gpuw")]
    assert len(ours) == 5
    for policy in ours:
        until(f"{policy['metadata']['name']} is checked", lambda p=policy: _checked(lab, p))  # type: ignore[misc] # mypy cannot infer the default


@pytest.mark.parametrize("resource", ["", "/status"], ids=["pods", "pods-status"])
class TestKeysStay:
    @pytest.mark.parametrize("kind", ["annotations", "labels"])
    @pytest.mark.parametrize(
        "key", ["gpuwarden.dev/x", "fudo.org/gpu.x", "gpuwarden.dev/reservation-id", ORDINAL]
    )
    def test_none_is_added(
        self, plain: Namespace, written: str, resource: str, kind: str, key: str
    ) -> None:
        with refused("BYPASS_ANNOTATION", key):
            _patch(plain, written, resource, kind, {key: "1"})

    @pytest.mark.parametrize("value", ["GPU-2", None], ids=["changed", "removed"])
    @pytest.mark.parametrize("key", WRITTEN)
    def test_no_annotation_changes(
        self, plain: Namespace, written: str, resource: str, key: str, value: str | None
    ) -> None:
        with refused("BYPASS_ANNOTATION", key):
            _patch(plain, written, resource, "annotations", {key: value})

    @pytest.mark.parametrize("value", ["1", None], ids=["changed", "removed"])
    @pytest.mark.parametrize("key", LABELS)
    def test_no_label_changes(
        self, plain: Namespace, written: str, resource: str, key: str, value: str | None
    ) -> None:
        with refused("BYPASS_ANNOTATION", key):
            _patch(plain, written, resource, "labels", {key: value})

    def test_the_administrator_is_no_exception(self, lab: Lab, written: str, resource: str) -> None:
        with refused("BYPASS_ANNOTATION", MAP):
            _patch(Namespace(lab.api, PLAIN), written, resource, "annotations", {MAP: "1=n:0"})

    def test_everything_else_changes(self, plain: Namespace, written: str, resource: str) -> None:
        for kind in ("annotations", "labels"):
            for value in ("1", "2", None):
                _patch(plain, written, resource, kind, {"example.org/gpuwarden.dev": value})

    def test_ordinals_of_pods_without_a_map_are_not_ours(
        self, plain: Namespace, resource: str
    ) -> None:
        for key in LABELS:
            if key in ORDINAL_KEYS:
                _patch(plain, "probe", resource, "labels", {key: "1"})
                _patch(plain, "probe", resource, "labels", {key: None})


class TestVeryMany:
    """The cost of an expression is bounded by the server; what exceeds it would be refused."""

    def test_a_pod_full_of_annotations_stays_and_is_finished(
        self, lab: Lab, plain: Namespace
    ) -> None:
        many = {f"a{number}": "" for number in range(5_000)}
        with _waiting(plain, "many", annotations=many) as name:
            path = f"{plain.path}/pods/{name}"
            lab.api.patch(f"{path}/status", {"status": {"phase": "Failed"}})
            lab.api.patch(path, {"metadata": {"finalizers": ["a/b"]}})
            lab.api.patch(path, {"metadata": {"finalizers": None}})
            with refused("BYPASS_ANNOTATION", "more than 1000"):
                _patch(plain, name, "", "labels", {"example.org/x": "1"})

    def test_a_thousand_keys_are_read(self, plain: Namespace) -> None:
        many = {f"a{number}": "" for number in range(900)}
        with _waiting(plain, "some", annotations={**many, **WRITTEN}) as name:
            _patch(plain, name, "", "labels", {"example.org/x": "1"})
            with refused("BYPASS_ANNOTATION", MAP):
                _patch(plain, name, "", "annotations", {**dict.fromkeys(many, "1"), MAP: None})

    def test_nor_do_bindings_and_tolerations_come_in_thousands(
        self, plain: Namespace, node: str
    ) -> None:
        many = {f"a{number}": "" for number in range(1001)}
        with refused("BINDING_FORGED", "more than 1000"):
            _bind(plain, "probe", node, annotations=many)
        tolerations = [{"key": key, "operator": "Exists"} for key in many]
        with refused("BYPASS_TOLERATION", "more than 1000"):
            plain.create(_idle("tolerant", tolerations=tolerations))


class TestDevices:
    @pytest.mark.parametrize("key", DEVICE_KEYS)
    @pytest.mark.parametrize("resource", ["", "/status"], ids=["pods", "pods-status"])
    def test_none_comes_later_where_pods_are_managed(
        self, plain: Namespace, enforced: Namespace, resource: str, key: str
    ) -> None:
        with refused("BYPASS_CDI", key):
            _patch(enforced, "probe", resource, "annotations", {key: "nvidia.com/gpu=all"})
        _patch(plain, "probe", resource, "annotations", {key: "nvidia.com/gpu=all"})
        _patch(plain, "probe", resource, "annotations", {key: None})

    def test_one_that_is_there_can_go_but_not_change(self, enforced: Namespace) -> None:
        key = "cdi.k8s.io/gpu"
        with _waiting(enforced, "devices", annotations={key: "nvidia.com/gpu=0"}) as name:
            with refused("BYPASS_CDI", key):
                _patch(enforced, name, "", "annotations", {key: "nvidia.com/gpu=1"})
            _patch(enforced, name, "", "annotations", {key: None})


@pytest.mark.parametrize("old", [False, True], ids=["pods-binding", "bindings"])
class TestBindings:
    @pytest.mark.parametrize("kind", ["annotations", "labels"])
    @pytest.mark.parametrize("key", [*WRITTEN, "gpuwarden.dev/x", *ORDINAL_KEYS])
    def test_our_keys_do_not_come_with_one_that_no_binding_webhook_sees(
        self, plain: Namespace, node: str, old: bool, kind: str, key: str
    ) -> None:
        with _waiting(plain, "bound") as name:
            with refused("BINDING_FORGED", key):
                _bind(plain, name, node, old=old, **{kind: {key: "1"}})
            assert "nodeName" not in plain.get(name)["spec"]

    def test_others_keys_do(self, plain: Namespace, node: str, old: bool) -> None:
        with _waiting(plain, "bound") as name:
            _bind(plain, name, node, old=old, annotations={"example.org/x": "1"})
            assert plain.node_of(name) == node
            assert plain.get(name)["metadata"]["annotations"]["example.org/x"] == "1"

    def test_the_binding_webhook_writes_ours_where_it_is(
        self,
        lab: Lab,
        enforced: Namespace,
        node: str,
        old: bool,
    ) -> None:
        """In enforced namespaces, and for our scheduler."""
        for here in (enforced, Namespace(_scheduler(lab), PLAIN)):
            with _waiting(here, "registered") as name:
                _bind(here, name, node, old=old, annotations={"gpuwarden.dev/node": node})
                assert here.get(name)["metadata"]["annotations"]["gpuwarden.dev/node"] == node

    def test_it_is_not_in_namespaces_of_the_infrastructure(
        self, lab: Lab, node: str, old: bool
    ) -> None:
        here = Namespace(_scheduler(lab), "gpuwarden-system")
        until("it has its account", lambda: lab.api.found(f"{here.path}/serviceaccounts/default"))
        with (
            _waiting(here, "infrastructure") as name,
            refused("BINDING_FORGED", "gpuwarden.dev/node"),
        ):
            _bind(here, name, node, old=old, annotations={"gpuwarden.dev/node": node})


class TestEnforcement:
    @pytest.mark.parametrize("resource", ["", "/status", "/finalize"])
    @pytest.mark.parametrize("value", ["false", None], ids=["changed", "removed"])
    def test_who_may_change_namespaces_may_not_open_them(
        self, tenant: Api, resource: str, value: str | None
    ) -> None:
        with refused("ROLE_DENIED"):
            _relabel(tenant, ENFORCED, resource, {ENFORCE: value})

    @pytest.mark.parametrize("resource", ["", "/status", "/finalize"])
    def test_nor_close_them(self, tenant: Api, resource: str) -> None:
        with refused("ROLE_DENIED"):
            _relabel(tenant, PLAIN, resource, {ENFORCE: "true"})
        with refused("ROLE_DENIED"):
            tenant.post(NAMESPACES, _namespace_object("policy-new", {ENFORCE: "true"}))

    @pytest.mark.parametrize("resource", ["", "/status", "/finalize"])
    def test_but_everything_else(self, tenant: Api, resource: str) -> None:
        for name in (ENFORCED, "kube-system"):
            _relabel(tenant, name, resource, {"example.org/x": "1"})
            _relabel(tenant, name, resource, {"example.org/x": None})

    def test_our_verb_allows_it(self, lab: Lab, warden: Api) -> None:
        warden.post(NAMESPACES, _namespace_object("policy-new", {ENFORCE: "true"}))
        for resource in ("", "/status", "/finalize"):
            for value in ("false", None, "true"):
                _relabel(warden, "policy-new", resource, {ENFORCE: value})
        _delete_namespace(lab, "policy-new")

    def test_our_verb_can_be_given_for_one_namespace(self, lab: Lab, tenant: Api) -> None:
        with may_manage(lab, "tenant", PLAIN):
            until(
                "the right is known",
                lambda: (
                    outcome(tenant, lambda: _relabel(tenant, PLAIN, "", {ENFORCE: "false"}))
                    is Outcome.PASSED
                ),
            )
            with refused("ROLE_DENIED"):
                _relabel(tenant, ENFORCED, "", {ENFORCE: None})
            _relabel(tenant, PLAIN, "", {ENFORCE: None})

    @pytest.mark.parametrize("name", ["kube-system", "kube-node-lease", "gpuwarden-system"])
    def test_never_on_namespaces_of_the_infrastructure(
        self, lab: Lab, warden: Api, name: str
    ) -> None:
        for api in (warden, lab.api):
            for resource in ("", "/status", "/finalize"):
                with refused("REQ_INVALID", "own namespaces"):
                    _relabel(api, name, resource, {ENFORCE: "true"})

    @pytest.mark.parametrize("value", ["True", "1", "yes", ""])
    def test_a_value_that_would_mean_nothing(self, warden: Api, value: str) -> None:
        with refused("REQ_INVALID", f"'{value}'", status=422):
            _relabel(warden, PLAIN, "", {ENFORCE: value})


@pytest.mark.parametrize("label", ["gpuwarden.dev/clients", "gpuwarden.dev/monitoring"])
class TestLabelsThatOpenPorts:
    @pytest.mark.parametrize("resource", ["", "/status", "/finalize"])
    def test_who_may_change_namespaces_may_neither_set_nor_remove_them(
        self, lab: Lab, tenant: Api, label: str, resource: str
    ) -> None:
        with refused("ROLE_DENIED", label):
            _relabel(tenant, PLAIN, resource, {label: "true"})
        _relabel(lab.api, PLAIN, "", {label: "true"})
        for value in ("false", None):
            with refused("ROLE_DENIED", label):
                _relabel(tenant, PLAIN, resource, {label: value})
        _relabel(lab.api, PLAIN, "", {label: None})

    def test_nor_create_a_namespace_with_one(self, tenant: Api, label: str) -> None:
        with refused("ROLE_DENIED", label):
            tenant.post(NAMESPACES, _namespace_object("policy-new", {label: "true"}))

    def test_our_verb_allows_it(self, warden: Api, label: str) -> None:
        warden.post(f"{NAMESPACES}{DRY}", _namespace_object("policy-new", {label: "true"}))
        for name in (PLAIN, "kube-system"):
            for resource in ("", "/status", "/finalize"):
                for value in ("true", "false", None):
                    _relabel(warden, name, resource, {label: value})


class TestNamesOfTheInfrastructure:
    """Pods of such a namespace start without gpuwarden, on any node."""

    @pytest.mark.parametrize("name", ["spire-server", "spire-system"])
    def test_who_may_create_namespaces_may_not_create_these(self, tenant: Api, name: str) -> None:
        document = _namespace_object(name, {})
        with refused("ROLE_DENIED", name):
            tenant.post(NAMESPACES, document)
        document["metadata"]["generateName"] = "policy-"
        with refused("ROLE_DENIED", name):
            tenant.post(NAMESPACES, document)
        document = {"apiVersion": "v1", "kind": "Namespace", **_namespace_object(name, {})}
        with refused("ROLE_DENIED", name):
            tenant.patch(f"{NAMESPACES}/{name}?fieldManager=tenant", document, APPLY)

    def test_a_generated_name_is_another_whatever_its_labels_say(self, tenant: Api) -> None:
        labels = {"kubernetes.io/metadata.name": "spire-server"}
        document = {"metadata": {"generateName": "spire-server", "labels": labels}}
        made = tenant.post(f"{NAMESPACES}{DRY}", document)["metadata"]
        assert made["name"].startswith("spire-server")
        assert made["name"] != "spire-server"
        assert made["labels"] == {"kubernetes.io/metadata.name": made["name"]}

    def test_others_are_free(self, tenant: Api) -> None:
        for name in ("policy-new", "spire", "kube-system-2"):
            tenant.post(f"{NAMESPACES}{DRY}", _namespace_object(name, {}))

    def test_our_verb_allows_it(self, lab: Lab, warden: Api) -> None:
        for api in (warden, lab.api):
            _may_create(api, "spire-server")

    def test_our_verb_can_be_given_for_one_name(self, lab: Lab, tenant: Api) -> None:
        with may_manage(lab, "tenant", "spire-server"):
            until(
                "the right is known",
                lambda: (
                    outcome(tenant, lambda: _may_create(tenant, "spire-server")) is Outcome.PASSED
                ),
            )
            with refused("ROLE_DENIED", "spire-system"):
                _may_create(tenant, "spire-system")

    @pytest.mark.parametrize("name", ["kube-system", "kube-node-lease"])
    def test_the_api_server_makes_its_own(self, lab: Lab, tenant: Api, name: str) -> None:
        """Under this name, whenever they are missing."""
        with refused("ROLE_DENIED", name):
            _may_create(tenant, name)
        _may_create(person(lab, "system:apiserver", "system:masters"), name)


class TestProtection:
    @pytest.mark.parametrize(
        "toleration",
        [
            WILDCARD,
            {"operator": "Exists", "effect": "NoExecute"},
            {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
            {"key": MANAGED_TAINT, "operator": "Exists"},
            {"key": MANAGED_TAINT, "operator": "Exists", "effect": "NoSchedule"},
            {"key": MANAGED_TAINT, "operator": "Equal", "value": "x"},
            {"key": MANAGED_TAINT, "effect": "NoExecute"},
        ],
        ids=str,
    )
    def test_nobody_tolerates_the_taint_elsewhere(
        self, plain: Namespace, enforced: Namespace, toleration: Document
    ) -> None:
        with refused("BYPASS_TOLERATION"):
            plain.create(_idle("tolerant", tolerations=[toleration]))
        with refused("BYPASS_TOLERATION"):
            _add_toleration(plain, "probe", toleration)
        for here in (enforced, Namespace(plain.api, "kube-system")):
            with _waiting(here, "tolerant", tolerations=[toleration]) as name:
                assert toleration.items() <= here.get(name)["spec"]["tolerations"][0].items()

    @pytest.mark.parametrize(
        "toleration",
        [
            {"operator": "Exists", "effect": "NoSchedule"},
            {"operator": "Exists", "effect": "PreferNoSchedule"},
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": f"{MANAGED_TAINT}-by", "operator": "Exists"},
        ],
        ids=str,
    )
    def test_other_tolerations_are_nobodys_business(
        self, plain: Namespace, toleration: Document
    ) -> None:
        with _waiting(plain, "other", tolerations=[toleration]) as name:
            _add_toleration(plain, name, {"key": "example.org/x", "operator": "Exists"})

    def test_nobody_chooses_a_node_past_the_scheduler(
        self, plain: Namespace, enforced: Namespace, node: str
    ) -> None:
        with refused("BYPASS_NODE_NAME"):
            plain.create(_idle("placed", nodeName=node))
        for here in (enforced, Namespace(plain.api, "kube-system")):
            with _waiting(here, "placed", nodeName=node) as name:
                assert here.node_of(name) == node

    def test_a_mirror_pod_is_only_a_nodes(self, lab: Lab, plain: Namespace, node: str) -> None:
        """NodeRestriction lets a node make mirror pods of its own and nothing else."""
        kubelet = person(lab, f"system:node:{node}", "system:nodes")
        uid = lab.api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
        mirror = _idle("mirror", nodeName=node, tolerations=[WILDCARD])
        mirror["metadata"] |= {
            "annotations": {"kubernetes.io/config.mirror": "0" * 32},
            "ownerReferences": [owner],
        }
        with refused("BYPASS_"):
            plain.create(mirror)
        Namespace(kubelet, PLAIN).create(mirror)
        kubelet.patch(f"{plain.path}/pods/mirror/status", {"status": {"phase": "Running"}})
        kubelet.delete(f"{plain.path}/pods/mirror", grace_s=0)

    @pytest.mark.usefixtures("real_node")
    def test_a_static_pod_of_a_real_kubelet_is_mirrored(self, lab: Lab, plain: Namespace) -> None:
        manifest = pod("static", "say", "here", restartPolicy="Always")
        manifest["metadata"]["namespace"] = PLAIN
        file = lab.node.kubelet.static_pods / "static.yaml"
        file.write_text(yaml.safe_dump(manifest))
        name = f"static-{lab.node.name}"
        until("it is mirrored", lambda: lab.api.found(f"{plain.path}/pods/{name}"))
        assert plain.phase(name, "Running") == "Running"
        mirror = plain.get(name)["metadata"]
        assert mirror["annotations"]["kubernetes.io/config.mirror"] in _uids_by_cgroup()
        assert mirror["uid"] not in _uids_by_cgroup()
        file.unlink()
        until("it is gone", lambda: lab.api.found(f"{plain.path}/pods/{name}") is None)


class TestKubernetesGoesOn:
    def test_a_job_from_before_the_policies_is_finished(
        self, plain: Namespace, veteran: str
    ) -> None:
        """Its pod tolerates everything and lives on by a finalizer, which is a pod update."""
        assert plain.get(veteran)["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
        _finish(plain, "veteran")
        _patch(plain, veteran, "", "labels", {"example.org/x": "1"})
        _add_toleration(plain, veteran, {"key": "example.org/x", "operator": "Exists"})

    def test_a_managed_indexed_job_is_finished_and_deleted(
        self, lab: Lab, enforced: Namespace, node: str
    ) -> None:
        document = _job("indexed", [], annotations={MAP: f"0={node}:0"})
        document["spec"] |= {"completionMode": "Indexed", "completions": 1}
        jobs = f"/apis/batch/v1/namespaces/{ENFORCED}/jobs"
        enforced.api.post(jobs, document)
        assert enforced.node_of(_pod_of(enforced, "indexed")) == node
        _finish(enforced, "indexed")
        lab.api.delete(f"{jobs}/indexed?propagationPolicy=Foreground")
        until("it is gone", lambda: lab.api.found(f"{jobs}/indexed") is None)

    def test_a_stateful_set_makes_its_pods_again(
        self, lab: Lab, enforced: Namespace, node: str
    ) -> None:
        sets = f"/apis/apps/v1/namespaces/{ENFORCED}/statefulsets"
        enforced.api.post(sets, _stateful_set("mapped", {MAP: f"0={node}:0\n1={node}:1"}))
        first = until("its pod is there", lambda: lab.api.found(f"{enforced.path}/pods/mapped-0"))
        assert first["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"
        assert enforced.node_of("mapped-0") == node
        lab.api.delete(f"{enforced.path}/pods/mapped-0", grace_s=0)
        until(
            "it is made again",
            lambda: (
                _uid(lab.api, f"{enforced.path}/pods/mapped-0")
                not in (None, first["metadata"]["uid"])
            ),
        )
        lab.api.delete(f"{sets}/mapped?propagationPolicy=Orphan")
        lab.api.delete(f"{enforced.path}/pods/mapped-0", grace_s=0)

    def test_the_scheduler_binds_a_pod_with_our_keys(self, plain: Namespace, node: str) -> None:
        document = pod("scheduled", kind="fake")
        document["metadata"]["annotations"] = WRITTEN
        plain.create(document)
        assert plain.node_of("scheduled") == node
        plain.api.delete(f"{plain.path}/pods/scheduled", grace_s=0)

    def test_a_pod_is_resized_debugged_and_evicted_and_keeps_its_keys(
        self, plain: Namespace, node: str
    ) -> None:
        document = pod("changed", kind="fake")
        document["metadata"]["annotations"] = WRITTEN
        resources = {"requests": {"cpu": "100m"}}
        document["spec"]["containers"][0]["resources"] = resources
        path = f"{plain.path}/pods/{plain.create(document)}"
        assert plain.node_of("changed") == node
        other = {"annotations": {MAP: "1=n:0"}}
        bigger = {"name": "main", "resources": {"requests": {"cpu": "200m"}}}
        plain.api.patch(
            f"{path}/resize", {"metadata": other, "spec": {"containers": [bigger]}}, STRATEGIC
        )
        debugger = {"name": "debugger", "image": PROBE}
        plain.api.patch(
            f"{path}/ephemeralcontainers",
            {"metadata": other, "spec": {"ephemeralContainers": [debugger]}},
            STRATEGIC,
        )
        found = plain.get("changed")
        assert found["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "200m"}}
        assert found["spec"]["ephemeralContainers"][0]["name"] == "debugger"
        assert found["metadata"]["annotations"] == WRITTEN
        plain.api.post(f"{path}/eviction", _eviction("changed"))
        until("it is going", lambda: _is_going(plain.api, path))
        plain.api.delete(path, grace_s=0)

    def test_an_enforced_namespace_is_deleted_with_everything_in_it(
        self, lab: Lab, warden: Api
    ) -> None:
        """Its controller calls namespaces/finalize."""
        warden.post(NAMESPACES, _namespace_object("policy-short", {ENFORCE: "true"}))
        here = Namespace(warden, "policy-short")
        until("it has its account", lambda: lab.api.found(f"{here.path}/serviceaccounts/default"))
        document = _idle("inside")
        document["metadata"]["annotations"] = WRITTEN
        here.create(document)
        _delete_namespace(lab, "policy-short")

    @pytest.mark.usefixtures("real_node")
    def test_a_real_kubelet_reports_on_a_pod_with_our_keys(self, plain: Namespace) -> None:
        document = pod("real", "say", "here")
        document["metadata"]["annotations"] = WRITTEN
        document["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
        plain.create(document)
        plain.says("real", "here")
        bigger = {"name": "main", "resources": {"requests": {"cpu": "20m"}}}
        plain.api.patch(
            f"{plain.path}/pods/real/resize", {"spec": {"containers": [bigger]}}, STRATEGIC
        )
        until("kubelet has resized it", lambda: _allocated(plain, "real") == {"cpu": "20m"})
        plain.delete("real")


@pytest.fixture
def reporting(policies: Policies, node: str, tmp_path: Path) -> str:
    """The policies only warn from here on."""
    policies.report(tmp_path)
    return node


class TestReports:
    """Last in this file."""

    def test_nothing_is_refused_and_everything_is_said(
        self,
        tenant: Api,
        plain: Namespace,
        enforced: Namespace,
        reporting: str,
    ) -> None:
        node = reporting
        bound = plain.create(_idle("report"))
        tries: dict[str, Callable[[], object]] = {
            "BYPASS_ANNOTATION": lambda: _patch(plain, "probe", "", "annotations", {MAP: "0=n:0"}),
            "BYPASS_CDI": lambda: _patch(
                enforced, "probe", "", "annotations", {"cdi.k8s.io/x": "y"}
            ),
            "BINDING_FORGED": lambda: _bind(
                plain, bound, node, annotations={"gpuwarden.dev/node": node}
            ),
            "ROLE_DENIED": lambda: _relabel(tenant, PLAIN, "", {ENFORCE: "true"}),
        }
        for code, ask in tries.items():
            assert outcome(tenant, ask) is Outcome.WARNED
            assert f"gpuwarden: {code} " in " ".join(tenant.warnings)
        _relabel(tenant, PLAIN, "", {ENFORCE: None})
        with _waiting(plain, "reported", tolerations=[WILDCARD], nodeName=node) as name:
            assert plain.node_of(name) == node
        assert plain.get(bound)["metadata"]["annotations"]["gpuwarden.dev/node"] == node


@contextmanager
def refused(code: str, text: str = "", *, status: int = 403) -> Iterator[None]:
    """A policy refuses what is asked within, with this code and with this text in the message."""
    with pytest.raises(ApiError) as found:
        yield
    assert f"gpuwarden: {code}" in found.value.message
    assert text in found.value.message
    assert found.value.status == status


def _scheduler(lab: Lab) -> Api:
    """Somebody with the name of our scheduler's account; what it may do is not tried here."""
    return person(lab, account("gpuwarden-scheduler"), "system:masters")


def _namespace(lab: Lab, tenant: Api, name: str, labels: dict[str, str]) -> Iterator[Namespace]:
    """A namespace with a pod `probe` that nobody schedules, used as `tenant`."""
    lab.api.post(NAMESPACES, _namespace_object(name, labels))
    here = Namespace(tenant, name)
    until("it has its account", lambda: lab.api.found(f"{here.path}/serviceaccounts/default"))
    here.create(_idle("probe"))
    yield here
    _delete_namespace(lab, name)


def _namespace_object(name: str, labels: dict[str, str]) -> Document:
    return {"metadata": {"name": name, "labels": labels}}


def _may_create(api: Api, name: str) -> None:
    """Without creating it. A policy refuses before the name is found to be taken."""
    try:
        api.post(f"{NAMESPACES}{DRY}", _namespace_object(name, {}))
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def _delete_namespace(lab: Lab, name: str) -> None:
    """And everything in it; pods on fake nodes do not end by themselves."""
    lab.api.delete(f"{NAMESPACES}/{name}")
    for item in lab.api.get(f"{NAMESPACES}/{name}/pods")["items"]:
        lab.api.delete(f"{NAMESPACES}/{name}/pods/{item['metadata']['name']}", grace_s=0)
    until(f"{name} is gone", lambda: lab.api.found(f"{NAMESPACES}/{name}") is None)


def _uids_by_cgroup() -> set[str]:
    """Of the pods that have a process here, as the agent reads them."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):  # the process has ended
            found.add(pod_uid(file.read_text()))
    return {uid for uid in found if uid is not None}


def _idle(name: str, **spec: Any) -> Document:
    """A pod that no scheduler knows."""
    return pod(name, kind="fake", schedulerName="nobody", **spec)


@contextmanager
def _waiting(
    here: Namespace,
    name: str,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Iterator[str]:
    document = _idle(name, **spec)
    document["metadata"] |= {"annotations": annotations or {}, "labels": labels or {}}
    try:
        yield here.create(document)
    finally:
        here.api.delete(f"{here.path}/pods/{name}", grace_s=0)


def _patch(
    here: Namespace, name: str, resource: str, kind: str, keys: dict[str, str | None]
) -> None:
    here.api.patch(f"{here.path}/pods/{name}{resource}", {"metadata": {kind: keys}})


def _add_toleration(here: Namespace, name: str, toleration: Document) -> None:
    there = here.get(name)["spec"].get("tolerations", [])
    spec = {"tolerations": [*there, toleration]}
    here.api.patch(f"{here.path}/pods/{name}", {"spec": spec})


def _bind(
    here: Namespace, name: str, node: str, *, old: bool = False, **metadata: dict[str, str]
) -> None:
    document = binding(name, node)
    document["metadata"] |= metadata
    here.api.post(f"{here.path}/{'bindings' if old else f'pods/{name}/binding'}", document)


def _relabel(api: Api, name: str, resource: str, labels: dict[str, str | None]) -> None:
    path = f"{NAMESPACES}/{name}"
    if resource != "/finalize":
        api.patch(f"{path}{resource}", {"metadata": {"labels": labels}})
        return
    document = api.get(path)
    there = {**document["metadata"]["labels"], **labels}
    document["metadata"]["labels"] = {k: v for k, v in there.items() if v is not None}
    api.put(f"{path}/finalize", document)


def _checked(lab: Lab, policy: Document) -> bool:
    status = lab.api.get(f"{POLICIES}/{policy['metadata']['name']}").get("status", {})
    assert "expressionWarnings" not in status.get("typeChecking", {})
    return bool(status.get("observedGeneration") == policy["metadata"]["generation"])


def _job(
    name: str, tolerations: list[Document], annotations: dict[str, str] | None = None
) -> Document:
    spec = pod(name, kind="fake", tolerations=tolerations)["spec"]
    template = {"metadata": {"annotations": annotations or {}}, "spec": spec}
    return {"metadata": {"name": name}, "spec": {"template": template}}


def _pod_of(here: Namespace, job: str) -> str:
    """The only pod of a Job."""

    def find() -> str:
        items = here.api.get(f"{here.path}/pods?labelSelector=job-name={job}")["items"]
        return str(items[0]["metadata"]["name"]) if items else ""

    return until(f"Job {job} has a pod", find)


def _finish(here: Namespace, job: str) -> None:
    """As kubelet reports the end of the Job's pod; the Job is complete afterwards."""
    name = _pod_of(here, job)
    path = f"/apis/batch/v1/namespaces/{here.name}/jobs/{job}"
    here.api.patch(f"{here.path}/pods/{name}/status", {"status": {"phase": "Succeeded"}})
    until(f"Job {job} is complete", lambda: here.api.get(path)["status"].get("completionTime"))
    until("the pod is let go", lambda: "finalizers" not in here.get(name)["metadata"])


def _stateful_set(name: str, annotations: dict[str, str]) -> Document:
    labels = {"app": name}
    spec = {**pod(name, kind="fake")["spec"], "restartPolicy": "Always"}
    return {
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
        },
    }


def _eviction(name: str) -> Document:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


def _uid(api: Api, path: str) -> str | None:
    found = api.found(path)
    return None if found is None else str(found["metadata"]["uid"])


def _is_going(api: Api, path: str) -> bool:
    found = api.found(path)
    return found is None or "deletionTimestamp" in found["metadata"]


def _allocated(here: Namespace, name: str) -> Any:
    (status,) = here.get(name)["status"]["containerStatuses"]
    return status.get("allocatedResources")
