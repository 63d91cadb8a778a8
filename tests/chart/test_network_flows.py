"""The tables of docs/network.md against policies, Services and pods as they are rendered."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import yaml

from tests.chart.rendering import (
    NAMESPACE,
    REQUIRED,
    Object,
    annotations,
    objects,
    one,
    pods,
    render,
)
from tests.docs_pages.site import ROOT

PAGE: Final = "docs/network.md"
EVERYTHING: Final[dict[str, Any]] = {
    **REQUIRED,
    "spire": {"mode": "bundled"},
    "httpApi": {"enabled": True},
    "hints": {"scorer": {"enabled": True}},
    "networkPolicies": {"egress": {"enabled": True}},
}
"""With these every component is there, and every port is open."""
COMPONENTS: Final[Mapping[str, str]] = {
    "agents": "agent",
    "controllers": "controller",
    "scheduler": "scheduler",
    "scorer": "score",
    "SPIRE server": "spire-server",
    "SPIRE agents": "spire-agent",
    "job `gpuwarden-namespace-labels`": "namespace-labels",
    "job `gpuwarden-spire-entries-…`": "spire-entries",
    "job `gpuwarden-clean-up`": "clean-up",
    "pod `gpuwarden-helm-test`": "doctor",
}
"""Of the page -> label of the pods."""
LABELLED: Final = re.compile(r"namespaces with `(.+)=true`")
API: Final = ("443", "6443")
NONE: Final = "\u2013"
ON_NODES: Final = {"spire-agent"}
"""On the network of their node."""
OPEN: Final = {("controller", "10250"), ("spire-server", "8081")}
"""Ports that are open to all, because somebody who comes has the address of a node."""
Edge = tuple[str, str, str]
"""From, to (components, labels of namespaces, `DNS`, `API servers`, `all`), port."""


@pytest.fixture(scope="module")
def found() -> list[Object]:
    return render(EVERYTHING)


def rows(section: str) -> list[list[str]]:
    """Of the first table of a section."""
    _, _, text = (ROOT / PAGE).read_text().partition(f"\n## {section}\n")
    table = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table
    return [[x.strip() for x in row.strip("|").split(" | ")] for row in table[1].splitlines()]


def end(name: str) -> str:
    labelled = LABELLED.fullmatch(name)
    return labelled[1] if labelled else COMPONENTS.get(name, name)


def flows(section: str = "Flows") -> Iterator[Edge]:
    """Of the page, one for each port."""
    for source, target, ports, *_ in rows(section):
        for port in ports.split(", "):
            yield (end(source), end(target), port)


def component(labels: Mapping[str, str]) -> str:
    """Of the pods that are selected by these labels."""
    assert labels["app.kubernetes.io/name"] == "gpuwarden"
    assert len(labels) == 2
    return labels["app.kubernetes.io/component"]


def listening(found: list[Object]) -> dict[str, dict[str, str]]:
    """Component -> names of its ports -> their numbers."""
    ports: dict[str, dict[str, str]] = {}
    for name, spec in labelled(found):
        for container in spec["containers"]:
            for x in container.get("ports", ()):
                ports.setdefault(name, {})[x["name"]] = str(x["containerPort"])
    return ports


def labelled(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """Component and spec of every pod."""
    for x in found:
        for spec in pods([x]).values():
            metadata = x["metadata"] if x["kind"] == "Pod" else x["spec"]["template"]["metadata"]
            yield metadata["labels"]["app.kubernetes.io/component"], spec


def let_in(found: list[Object]) -> Iterator[Edge]:
    """What the policies allow to those who connect to these pods."""
    names = listening(found)
    for policy in objects(found, "NetworkPolicy"):
        own = component(policy["spec"]["podSelector"]["matchLabels"])
        for rule in policy["spec"].get("ingress", ()):
            for port in rule["ports"]:
                for peer in rule.get("from", [None]):
                    yield (source(peer), own, names[own][port["port"]])


def let_out(found: list[Object]) -> Iterator[Edge]:
    """What the policies allow these pods to connect to."""
    for policy in objects(found, "NetworkPolicy"):
        own = component(policy["spec"]["podSelector"]["matchLabels"])
        for rule in policy["spec"].get("egress", ()):
            for port in rule["ports"]:
                for peer in rule.get("to", [None]):
                    there = "DNS" if port["port"] == 53 else source(peer)
                    yield (own, "API servers" if there == "all" else there, str(port["port"]))


def source(peer: Object | None) -> str:
    if peer is None:
        return "all"
    if "namespaceSelector" in peer:
        ((label, value),) = peer["namespaceSelector"]["matchLabels"].items()
        return label if value == "true" else f"{label}={value}"
    return component(peer["podSelector"]["matchLabels"])


def test_labels_that_open_a_port_need_the_right_to_manage_enforcement(found: list[Object]) -> None:
    policy = one(found, "ValidatingAdmissionPolicy", "gpuwarden-enforcement")["spec"]
    (guarded,) = [x["expression"] for x in policy["variables"] if x["name"] == "guarded"]
    labels = [x[1] for source, *_ in rows("Flows") if (x := LABELLED.fullmatch(source))]
    assert len(set(labels)) == 3
    for label in labels:
        assert f"'{label}'" in guarded


def test_pods_may_connect_to_what_the_page_lists_and_nothing_else(found: list[Object]) -> None:
    """`all pods below` is each pod that has such a policy."""
    allowed = set(let_out(found))
    asking = {who for who, where, _ in allowed if where == "DNS"}
    assert asking == {who for who, _ in labelled(found)} - ON_NODES
    listed = {x for x in flows() if x[0] in asking}
    dns = {(who, "DNS", "53") for who in asking}
    assert ("all pods below", "DNS", "53") in set(flows())
    assert allowed == listed | dns


def test_pods_let_in_whom_the_page_lists_and_nobody_else(found: list[Object]) -> None:
    listed = {x for x in flows() if x[1] in COMPONENTS.values()}
    assert set(let_in(found)) == {("all" if x[1:] in OPEN else x[0], *x[1:]) for x in listed}


def test_the_page_has_every_port_that_is_listened_on_and_no_other(found: list[Object]) -> None:
    ports = {(who, port) for who, named in listening(found).items() for port in named.values()}
    shown = {x[1:] for section in ("Flows", "What no policy touches") for x in flows(section)}
    assert {x for x in shown if x[0] in COMPONENTS.values()} == ports


def test_the_page_has_the_ports_of_the_services(found: list[Object]) -> None:
    names = listening(found)
    services: dict[tuple[str, str], set[str]] = {}
    for service in objects(found, "Service"):
        own = component(service["spec"]["selector"])
        for x in service["spec"]["ports"]:
            port = names[own].get(str(x["targetPort"]), str(x["targetPort"]))
            services.setdefault((own, port), set()).add(str(x["port"]))
    for name, target, port, shown, _ in rows("Flows"):
        expected = services.get((COMPONENTS.get(target, ""), port), {NONE})
        assert set(shown.split(", ")) == expected, (name, target, port)


def test_probes_are_kubelets_rows(found: list[Object]) -> None:
    asked = set()
    names = listening(found)
    for who, spec in labelled(found):
        for container in spec["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    asked.add((who, names[who][container[probe]["httpGet"]["port"]]))
    shown = rows("What no policy touches")
    assert {x[0] for x in shown} == {"kubelet"}
    assert {(COMPONENTS[x[1]], x[2]) for x in shown} == asked


def test_only_the_agents_of_a_bundled_spire_are_on_their_nodes_network(
    found: list[Object],
) -> None:
    assert {who for who, spec in labelled(found) if spec.get("hostNetwork")} == ON_NODES


def test_hooks_bring_their_policies_before_their_pods(found: list[Object]) -> None:
    """In the same event, with a lower weight, and they leave nothing."""
    hooks = {}
    for x in found:
        noted = annotations(x)
        if pods([x]) and "helm.sh/hook" in noted:
            ((who, _),) = labelled([x])
            hooks[who] = noted
    assert hooks.keys() == {"namespace-labels", "clean-up", "doctor"}
    for who, noted in hooks.items():
        policy = annotations(one(found, "NetworkPolicy", f"gpuwarden-{who}-egress"))
        assert policy["helm.sh/hook"] == noted["helm.sh/hook"]
        assert int(policy["helm.sh/hook-weight"]) < int(noted["helm.sh/hook-weight"])
        assert "hook-succeeded" in policy["helm.sh/hook-delete-policy"]
    others = [x for x in objects(found, "NetworkPolicy") if "helm.sh/hook" not in annotations(x)]
    selected = {component(x["spec"]["podSelector"]["matchLabels"]) for x in others}
    assert selected & hooks.keys() == set()


def test_nothing_that_connects_is_limited_unless_it_is_asked_for() -> None:
    values = {**EVERYTHING, "networkPolicies": {}}
    for policy in objects(render(values), "NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert "egress" not in policy["spec"]


def egress(values: Mapping[str, Any], who: str) -> list[Object]:
    """Rules of a component's policy, behind those for DNS."""
    policies = {"egress": {"enabled": True, **values.get("egress", {})}}
    given = {**REQUIRED, **{x: y for x, y in values.items() if x != "egress"}}
    given["networkPolicies"] = {**policies, **values.get("networkPolicies", {})}
    policy = one(render(given), "NetworkPolicy", f"gpuwarden-{who}-egress")
    rules: list[Object]
    dns, *rules = policy["spec"]["egress"]
    assert {(x["protocol"], x["port"]) for x in dns["ports"]} == {("UDP", 53), ("TCP", 53)}
    return rules


def test_api_servers_are_named_by_their_addresses_and_ports() -> None:
    values = {
        "networkPolicies": {"apiServerCidrs": ["10.0.0.0/28"]},
        "egress": {"apiServerPorts": [16443]},
    }
    for who in ("controller", "scheduler", "clean-up"):
        rule = egress(values, who)[0]
        assert rule == {"ports": [{"port": 16443}], "to": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]}


@pytest.mark.parametrize(
    ("spire", "namespaces", "ports"),
    [
        ({}, ["spire-server", "spire-system"], [8081, 443]),
        (
            {"serverAddress": "spire.identity:8081", "namespaces": ["identity"]},
            ["identity"],
            [8081],
        ),
        ({"serverAddress": "10.0.0.7:9000", "namespaces": []}, None, [8081, 9000]),
    ],
)
def test_spires_server_is_looked_for_where_the_values_say(
    spire: Object, namespaces: list[str] | None, ports: list[int]
) -> None:
    _, rule = egress({"spire": spire}, "controller")
    assert [x["port"] for x in rule["ports"]] == ports
    named = [x["namespaceSelector"]["matchLabels"] for x in rule.get("to", ())]
    assert named == [{"kubernetes.io/metadata.name": x} for x in namespaces or ()]


def test_without_a_spire_server_nothing_is_open_for_one() -> None:
    (api,) = egress({"spire": {"serverAddress": "off"}}, "controller")
    assert [str(x["port"]) for x in api["ports"]] == list(API)


@pytest.mark.parametrize("who", ["agent", "controller", "scorer"])
def test_rules_of_ones_own_are_added_to_one_component(who: str) -> None:
    rule = {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 4318}]}
    values = {"hints": {"scorer": {"enabled": True}}, "egress": {who: [rule]}}
    names = {"agent": "agent", "controller": "controller", "scorer": "score"}
    for name, policy in names.items():
        assert (rule in egress(values, policy)) is (name == who)


def test_rules_for_dns_are_replaced_for_all() -> None:
    rule = {"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}], "ports": [{"port": 53}]}
    policies = {"egress": {"enabled": True, "dns": [rule]}}
    found = render({**EVERYTHING, "networkPolicies": policies})
    limited = [x for x in objects(found, "NetworkPolicy") if "egress" in x["spec"]]
    assert len(limited) == 9
    assert all(x["spec"]["egress"][0] == rule for x in limited)


def test_the_values_of_the_page_are_taken() -> None:
    text = (ROOT / PAGE).read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    found = render({**REQUIRED, **yaml.safe_load(block)})
    policy = one(found, "NetworkPolicy", "gpuwarden-controller-egress")
    assert policy["metadata"]["namespace"] == NAMESPACE
    assert policy["spec"]["egress"][-1]["ports"] == [{"port": 5432}]
