"""deploy/spire: the authorization table lets a reader do what the code calls, and nothing else."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.policies.file import decode_policy
from gpuwarden.identity.spiffe_id import Role, parse_spiffe_id, peer_name
from gpuwarden.wire.spire import agents_pb2, entries_pb2
from tests.architecture.test_names import ROOT
from tests.spire_policy import TABLE, UnknownPolicyError, differences, main

FOLDER = ROOT / "deploy" / "spire"
NEVER_CALLED = "CountAgents"
"""Only to find out whether we may: then we have more rights than we need."""
_API = "/spire.api.server."
_AUTHORITIES = "localauthority.v1.LocalAuthority"
NEWER = {
    f"{_API}svid.v1.SVID/MintWITSVID": ["admin", "local"],
    f"{_API}svid.v1.SVID/BatchNewWITSVID": ["agent"],
    f"{_API}bundle.v1.Bundle/PublishWITAuthority": ["downstream"],
    f"{_API}agent.v1.Agent/PostStatus": ["agent"],
    f"{_API}{_AUTHORITIES}/GetWITAuthorityState": ["admin", "local"],
    f"{_API}{_AUTHORITIES}/PrepareWITAuthority": ["admin", "local"],
    f"{_API}{_AUTHORITIES}/ActivateWITAuthority": ["admin", "local"],
    f"{_API}{_AUTHORITIES}/TaintWITAuthority": ["admin", "local"],
    f"{_API}{_AUTHORITIES}/RevokeWITAuthority": ["admin", "local"],
}
"""What SPIRE 1.14.0 has added to the 56 methods of 1.13, and 1.14.3 (PostStatus); 1.15 nothing:
https://github.com/spiffe/spire/commits/v1.15.3/pkg/server/authpolicy/policy_data.json
"""
ALLOWS = {"anyone": "allow_any"}
"""Else `allow_` and the kind of callers."""


@pytest.fixture(scope="module")
def table() -> Any:
    return json.loads((FOLDER / "authorization.json").read_text())


def test_readers_may_call_exactly_what_we_declare(table: Any) -> None:
    declared = {
        f"/{service.full_name}/{method.name}"
        for module in (agents_pb2, entries_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name != NEVER_CALLED
    }
    assert set(table["gpuwarden"]["methods"]) == declared


def test_the_reader_is_a_controller(table: Any) -> None:
    for reader in table["gpuwarden"]["readers"]:
        name = peer_name(parse_spiffe_id(reader), "/gpuwarden")
        assert name is not None
        assert name.role is Role.CONTROLLER


def test_what_we_call_is_open_to_nobody_else_over_the_network(table: Any) -> None:
    for method in table["gpuwarden"]["methods"]:
        assert table["methods"][method] == ["admin", "local"]
    kinds = {kind for kinds in table["methods"].values() for kind in kinds}
    assert kinds == {"admin", "agent", "anyone", "downstream", "local"}
    anyone = {method for method, kinds in table["methods"].items() if "anyone" in kinds}
    assert anyone == {
        "/spire.api.server.agent.v1.Agent/AttestAgent",
        "/spire.api.server.bundle.v1.Bundle/GetBundle",
    }


def test_the_table_has_what_newer_servers_ask_for(table: Any) -> None:
    methods = table["methods"]
    assert {x: methods[x] for x in NEWER} == NEWER
    assert len(methods) - len(NEWER) == 56


OPEN_TO = {
    "anyone": {"AttestAgent", "GetBundle"},
    "agent": {
        "RenewAgent",
        "PostStatus",
        "GetAuthorizedEntries",
        "SyncAuthorizedEntries",
        "BatchNewX509SVID",
        "BatchNewWITSVID",
        "NewJWTSVID",
    },
    "downstream": {"NewDownstreamX509CA", "PublishJWTAuthority", "PublishWITAuthority"},
    "local": {"Check", "List", "Watch", "GetInfo", "GetLogger", "SetLogLevel", "ResetLogLevel"},
    "admin, agent, local": {"GetFederatedBundle"},
}
"""Every other method: to `admin` and `local`."""


def test_no_method_is_open_to_more_callers_than_spire_opens_it_to(table: Any) -> None:
    found: dict[str, set[str]] = {}
    for method, kinds in table["methods"].items():
        found.setdefault(", ".join(kinds), set()).add(method.rpartition("/")[2])
    assert len(found.pop("admin, local")) == 45
    assert found == OPEN_TO


def policy_data(methods: dict[str, list[str]]) -> str:
    """In the form of SPIRE's own file."""
    apis = [
        {"full_method": name, **{ALLOWS.get(x, f"allow_{x}"): True for x in kinds}}
        for name, kinds in methods.items()
    ]
    return json.dumps({"apis": apis})


MINT = f"{_API}svid.v1.SVID/MintX509SVID"
UNKNOWN = f"{_API}svid.v1.SVID/MintAnything"


def test_a_server_whose_methods_are_a_part_of_the_table_keeps_its_rights(table: Any) -> None:
    older = {x: kinds for x, kinds in table["methods"].items() if x not in NEWER}
    for methods in (older, table["methods"]):
        assert differences(table, policy_data(methods)) == []


@pytest.mark.parametrize(
    ("method", "kinds", "said"),
    [
        (MINT, ["local"], f"{MINT}: admin, local; SPIRE: local"),
        (MINT, ["admin", "agent", "local"], f"{MINT}: admin, local; SPIRE: admin, agent, local"),
        (UNKNOWN, ["agent"], f"{UNKNOWN}: missing, nobody may call it; SPIRE: agent"),
    ],
)
def test_other_rights_than_the_servers_own_are_found(
    table: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    method: str,
    kinds: list[str],
    said: str,
) -> None:
    text = policy_data({**table["methods"], method: kinds})
    assert differences(table, text) == [said]
    (tmp_path / "policy_data.json").write_text(text)
    assert main([str(tmp_path / "policy_data.json")]) == 1
    assert capsys.readouterr().out == f"{said}\n"


def test_a_policy_of_another_form_is_not_judged(table: Any) -> None:
    known = {"full_method": MINT, "allow_admin": True}
    for apis in ([{**known, "allow_friends": True}], [known, known]):
        with pytest.raises(UnknownPolicyError, match="MintX509SVID"):
            differences(table, json.dumps({"apis": apis}))


def test_the_table_that_is_compared_is_the_shipped_one() -> None:
    assert FOLDER / "authorization.json" == TABLE


def test_entries_name_the_identities_of_the_code() -> None:
    files = ("clusterspiffeids.yaml", "people.yaml")
    documents = [x for name in files for x in yaml.safe_load_all((FOLDER / name).read_text())]
    assert {x["kind"] for x in documents} == {"ClusterSPIFFEID"}
    for document in documents:
        template = document["spec"]["spiffeIDTemplate"]
        text = re.sub(r"{{ \.TrustDomain }}", "example.org", template)
        text = re.sub(r"{{ \.PodSpec\.NodeName }}", "gpu-1", text)
        assert peer_name(parse_spiffe_id(text), "/gpuwarden") is not None
        assert "admin" not in document["spec"]
        assert {"k8s:ns", "k8s:sa"} <= {
            x.rpartition(":")[0] for x in document["spec"]["workloadSelectorTemplates"]
        }


@pytest.mark.parametrize("name", ["clusterspiffeids.yaml", "people.yaml"])
def test_entries_get_a_class_by_taking_off_a_comment(name: str) -> None:
    text = (FOLDER / name).read_text()
    plain = [*yaml.safe_load_all(text)]
    classed = [*yaml.safe_load_all(text.replace("# className: ", "className: "))]
    assert {x["spec"].pop("className") for x in classed} == {"spire-mgmt-spire"}
    assert classed == plain


def test_the_policy_of_the_readme_is_one() -> None:
    readme = (FOLDER / "README.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    head = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: Policy\n"
    text = head + textwrap.dedent(example).replace("DIGEST", "a" * 64)
    policy = decode_policy(text.encode())
    assert policy.attestors is not None
    assert policy.attestors["k8s_psat"].images == frozenset({"sha256:" + "a" * 64})


def test_the_readme_gives_helm_the_files_that_there_are() -> None:
    readme = (FOLDER / "README.md").read_text()
    given = re.findall(r"--set-file \$key\.authOpaPolicyEngine\.local\.(\w+)=(\S+)", readme)
    assert dict(given) == {
        "policy_data": "authorization.json",
        "rego": "deploy/spire/authorization.rego",
    }
    ((domain, source, made),) = re.findall(r"sed 's/(\S+)/\S+/' (\S+) > (\S+)", readme)
    assert (made, domain) == ("authorization.json", "example.org")
    assert f"spiffe://{domain}/" in (ROOT / source).read_text()
    assert (ROOT / "deploy/spire/authorization.rego").is_file()


def test_the_controller_is_called_as_its_service_is() -> None:
    entries = yaml.safe_load_all((FOLDER / "clusterspiffeids.yaml").read_text())
    names = {x["metadata"]["name"]: x["spec"].get("dnsNameTemplates", []) for x in entries}
    base = (ROOT / "deploy" / "kustomize" / "base" / "network.yaml").read_text()
    [service] = [x for x in yaml.safe_load_all(base) if x["kind"] == "Service"]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert names == {
        "gpuwarden-agent": [],
        "gpuwarden-controller": [
            f"{name}.{namespace}.svc",
            f"{name}.{namespace}.svc.cluster.local",
            name,
        ],
    }


def test_people_come_from_a_namespace_of_their_own_as_what_their_account_is_called() -> None:
    for entry in yaml.safe_load_all((FOLDER / "people.yaml").read_text()):
        role = entry["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        assert entry["spec"]["spiffeIDTemplate"].endswith(f"/gpuwarden/{role}/in-cluster")
        assert entry["spec"]["workloadSelectorTemplates"] == [
            "k8s:ns:gpuwarden-clients",
            f"k8s:sa:gpuwarden-{role}",
        ]
