"""The policy file: right ones, wrong ones with every fault named, and changes."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.policies.file import PolicyFile, decode_policy
from controller.policy import (
    AttestationClass,
    AttestorRules,
    ClassHash,
    Consequence,
    Level,
    MigStrategy,
    NodeMode,
    NodePool,
    Policy,
)
from gpuwarden.policy.document import MAX_BYTES, PolicyInvalidError, policy_schema
from tests.builders.fleet_views import hash_of

IMAGE = "sha256:" + "a" * 64
HEAD = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: Policy\n"
FULL = (
    HEAD
    + f"""
classes:
  - name: prod-h100
    hashes:
      - hash: {hash_of("a")}
        notAfter: 2026-02-01T00:00:00Z
      - {{hash: "{hash_of("b")}", notBefore: "2026-01-01T01:00:00+01:00"}}
    minLevel: L1
allowedHashes: ["{hash_of("a")}"]
minLevel: L2
drivers: {{allowed: ["570.86.10"], denied: [550.54.15]}}
vbios: {{denied: ["96.00.74.00.11"]}}
attestors:
  k8s_psat: {{selectors: [k8s:ns:gpuwarden, k8s:sa], images: ["{IMAGE}", "r.example/a@{IMAGE}"]}}
  x509pop: {{}}
deniedKeys: [GPU-bad]
labels: {{big: "memory>=40Gi"}}
pools:
  - {{pattern: "gpu-*", mode: plugin, uuids: [GPU-1], serials: ["165"], honoursVariable: true}}
  - {{pattern: "*", migStrategy: none}}
defaultMode: dra
processesCountAsUse: false
evictMismatched: true
hintWeight: 60
xids: {{"94": reset, "48": none}}
"""
)


def faults(text: str | bytes, *, opaque_hashes: bool = False) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(PolicyInvalidError) as error:
        decode_policy(data, opaque_hashes=opaque_hashes)
    assert error.value.findings
    return [str(finding) for finding in error.value.findings]


def test_every_key() -> None:
    assert decode_policy(FULL.encode()) == Policy(
        classes={
            "prod-h100": AttestationClass(
                "prod-h100",
                (
                    ClassHash(hash_of("a"), None, datetime(2026, 2, 1, tzinfo=UTC)),
                    ClassHash(hash_of("b"), datetime(2026, 1, 1, tzinfo=UTC)),
                ),
                Level.L1,
            )
        },
        allowed_hashes=frozenset({hash_of("a")}),
        min_level=Level.L2,
        allowed_drivers=frozenset({"570.86.10"}),
        denied_drivers=frozenset({"550.54.15"}),
        denied_vbios=frozenset({"96.00.74.00.11"}),
        attestors={
            "k8s_psat": AttestorRules(("k8s:ns:gpuwarden", "k8s:sa"), frozenset({IMAGE})),
            "x509pop": AttestorRules(),
        },
        denied_keys=frozenset({"GPU-bad"}),
        labels={"big": "memory>=40Gi"},
        pools=(
            NodePool(
                "gpu-*",
                NodeMode.PLUGIN,
                frozenset({"GPU-1"}),
                frozenset({"165"}),
                honours_variable=True,
            ),
            NodePool("*", mig_strategy=MigStrategy.NONE),
        ),
        default_mode=NodeMode.DRA,
        processes_count_as_use=False,
        evicts_mismatched=True,
        hint_weight=60,
        xids={94: Consequence.RESET, 48: Consequence.NONE},
        digest=hashlib.sha256(FULL.encode()).hexdigest(),
    )


@pytest.mark.parametrize("xid", ["0", "-1", "048", "x", "1" * 11])
def test_an_xid_is_a_number(xid: str) -> None:
    assert faults(f'{HEAD}xids: {{"{xid}": none}}\n') == [
        f'xids.{xid}: got {xid}; expected an XID, such as "94"'
    ]


def test_an_xid_has_one_of_three_consequences() -> None:
    [fault] = faults(f'{HEAD}xids: {{"94": reboot}}\n')
    assert fault.startswith("xids.94: got 'reboot'; expected ")


def test_a_file_that_says_nothing_demands_nothing() -> None:
    policy = decode_policy(HEAD.encode())
    assert policy == Policy(digest=policy.digest)


def test_null_is_the_same_as_leaving_out() -> None:
    text = HEAD + "allowedHashes: null\nattestors:\ndrivers: {allowed: ~}\n"
    policy = decode_policy(text.encode())
    assert policy == Policy(digest=policy.digest)
    assert faults(HEAD + "labels:\n") == ["labels: got None; expected a mapping"]


def test_all_faults_at_once_each_with_key_value_and_expectation() -> None:
    text = """
apiVersion: v1
classes:
  - {name: a, hashes: [], minLevel: 1}
  - {hashes: [{hash: 7}], colour: red}
allowedHashes: hash
drivers: {denied: [570.86]}
labels: [x]
defaultMode: auto
processesCountAsUse: "no"
minlevel: L1
"""
    found = faults(text)
    for expected in (
        "apiVersion: got 'v1'; expected config.gpuwarden.dev/v1alpha1",
        "kind: is required; expected Policy",
        "classes[0].hashes: got a list of 0; expected 1 to 256 elements",
        "classes[0].minLevel: got 1; expected L0 or L1 or L2 or L3",
        "classes[1].name: is required; expected a text of 1 to 253 characters",
        "classes[1].hashes[0].hash: got 7; expected a text",
        "classes[1].colour: unknown key; expected one of name, ",
        "allowedHashes: got 'hash'; expected a list",
        "drivers.denied[0]: got 570.86; expected a text",
        "labels: got a list of 1; expected a mapping",
        "defaultMode: got 'auto'; expected dra or env or per-gpu or plugin",
        "processesCountAsUse: got 'no'; expected true or false",
        "minlevel: unknown key; did you mean minLevel?",
    ):
        assert any(expected in fault for fault in found), (expected, found)
    assert len(found) == 13


def test_faults_of_meaning() -> None:
    text = (
        HEAD
        + f"""
classes:
  - name: twice
    hashes:
      - {{hash: abc}}
      - {{hash: "{hash_of("a")}", notBefore: tomorrow, notAfter: 2026-01-01T00:00:00}}
      - {{hash: "{hash_of("a")}", notBefore: 2026-02-01T00:00:00Z, notAfter: 2026-01-01T00:00:00Z}}
      - {{hash: "{hash_of("a")}", notBefore: 0001-01-01T00:00:00+23:00}}
      - {{hash: "{hash_of("a")}", notBefore: "2026-01-01"}}
  - {{name: twice, hashes: [{{hash: "{hash_of("a")}"}}]}}
allowedHashes: ["{hash_of("A")}"]
labels: {{big: "memory>=lots", assign: "mig=false", "a/b": "mig=false"}}
"""
    )
    found = faults(text)
    for expected in (
        "classes[0].name: got 'twice'; expected each class once",
        "classes[1].name: got 'twice'; expected each class once",
        "classes[0].hashes[0].hash: got 'abc'; expected v1:sha256:",
        "classes[0].hashes[1].notBefore: got 'tomorrow'; expected a time",
        "classes[0].hashes[1].notAfter: got '2026-01-01T00:00:00'; expected a time",
        "classes[0].hashes[2].notAfter: got '2026-01-01T00:00:00Z'; expected a time after",
        "classes[0].hashes[3].notBefore: got '0001-01-01T00:00:00+23:00'; expected a time",
        "classes[0].hashes[4].notBefore: got '2026-01-01'; expected a time",
        "allowedHashes[0]: got 'v1:sha256:AAAA",
        "labels.big: got 'memory>=lots'; expected a quantity",
        "labels.assign: got 'mig=false'; expected a name",
        "labels.a/b: got 'mig=false'; expected a name",
    ):
        assert any(expected in fault for fault in found), (expected, found)
    assert len(found) == 12


def test_opaque_hashes_only_with_static_hashes() -> None:
    text = HEAD + "allowedHashes: [abc]\n"
    assert faults(text)
    assert decode_policy(text.encode(), opaque_hashes=True).allowed_hashes == frozenset({"abc"})
    assert faults(HEAD + "allowedHashes: ['a,b']\n", opaque_hashes=True)


def test_faults_of_attestors() -> None:
    text = (
        HEAD
        + """
attestors:
  join_token: {}
  k8s_psat: {selectors: ["k8s ns", ""], images: [agent:v1], colour: red}
"""
    )
    assert faults(text) == [
        (
            "attestors.k8s_psat.selectors[1]: got ''; expected a text of 1 to 253 characters"
            " (quote it if it looks like a number)"
        ),
        "attestors.k8s_psat.colour: unknown key; expected one of selectors, images",
    ]
    assert faults(text.replace(', ""', "").replace(", colour: red", "")) == [
        "attestors.join_token: unknown key; expected one of k8s_psat, x509pop",
        (
            "attestors.k8s_psat.selectors[0]: got 'k8s ns'; expected type:value, or its beginning,"
            " such as k8s:ns or k8s:ns:gpuwarden"
        ),
        (
            "attestors.k8s_psat.images[0]: got 'agent:v1'; expected an image by digest: sha256: and"
            " 64 hex digits, a name and @ before it"
        ),
    ]
    assert faults(HEAD + "attestors: {}\n") == [
        "attestors: got nothing; expected at least one of k8s_psat, x509pop"
    ]
    assert faults(HEAD + "attestors: [k8s_psat]\n") == [
        "attestors: got a list of 1; expected a mapping"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a mapping"),
        ("- 1", "expected a mapping"),
        ("just text", "expected a mapping"),
        (
            HEAD + "minLevel: L1\nminLevel: L0\n",
            "the document (line 4): got key 'minLevel' again; expected each key once",
        ),
        (HEAD + "labels: {a: mig=true, a: mig=false}\n", "got key 'a' again"),
        (HEAD + "labels: {1: mig=true}\n", "got key '1'; expected text as key"),
        (HEAD + "labels: {? [a] : b}\n", "got a complex key; expected plain keys"),
        (HEAD + "deniedKeys: &x [a]\nallowedHashes: *x\n", "got an anchor or alias"),
        (HEAD + "labels: {<<: {a: b}}\n", "got key '<<'; expected text as key"),
        (HEAD + "---\n" + HEAD, "expected one document"),
        ("a: [", "expected YAML"),
        ("a: !!python/object/apply:os.getcwd []", "expected values without tags"),
        ("a: \x07", "expected YAML"),
        ("[" * 2000, "expected at most 32 levels"),
        (b"\xff\xfe\xfd", "UTF-8"),
        (b"#" * (MAX_BYTES + 1), "at most"),
        (HEAD + "minLevel: !!int ''\n", "expected values without tags"),
        (HEAD + "minLevel: !!bool x\n", "expected values without tags"),
        (HEAD + "minLevel: !!timestamp x\n", "expected values without tags"),
        (HEAD + "deniedKeys: !!set {a}\n", "expected values without tags"),
    ],
)
def test_what_is_no_document(text: str | bytes, expected: str) -> None:
    (fault,) = faults(text)
    assert expected in fault


def test_schema_is_json_and_knows_every_key() -> None:
    schema = policy_schema()
    keys = schema["$defs"]["PolicyDocument"]["properties"]
    assert set(keys) >= {"apiVersion", "kind", "classes", "labels", "pools", "processesCountAsUse"}
    assert schema["$defs"]["PolicyDocument"]["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema


def test_a_changed_file_is_taken_and_a_wrong_one_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(HEAD)
    file = PolicyFile(path)
    first = file.current
    assert file.refresh() is None

    path.write_text(HEAD + "minLevel: L1\n")
    change = file.refresh()
    assert change is not None
    assert change.policy is file.current
    assert file.current.min_level is Level.L1

    path.write_text(HEAD + "minLevel: L1\nallowedHashes: [abc]\n")
    change = file.refresh()
    assert change is not None
    assert change.policy is None
    assert change.findings[0].key == "allowedHashes[0]"
    assert file.current.min_level is Level.L1
    assert file.refresh() is None

    path.unlink()
    change = file.refresh()
    assert change is not None
    assert "expected a readable file" in str(change.findings[0])
    assert file.refresh() is None
    assert file.current.min_level is Level.L1

    path.write_text(HEAD)
    assert file.refresh() is not None
    assert file.current == first


def test_a_file_that_is_wrong_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyInvalidError, match="No such file"):
        PolicyFile(tmp_path / "missing.yaml")
    (tmp_path / "wrong.yaml").write_text("kind: Policy\n")
    with pytest.raises(PolicyInvalidError, match="apiVersion: is required"):
        PolicyFile(tmp_path / "wrong.yaml")
