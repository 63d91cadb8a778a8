"""Manifests of the policy's custom resources in a file, judged as the controller judges them."""

import pytest

from gpuwarden.policy.document import MAX_BYTES, PolicyInvalidError
from gpuwarden.policy.objects import CLASS, POLICY, ObjectKey, has_objects, read_objects

HASH = "v1:sha256:" + "a" * 64
VERSION = "apiVersion: gpuwarden.dev/v1alpha1\n"


def policy(spec: str = "{}", name: str = "cluster") -> str:
    return f"{VERSION}kind: {POLICY}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n"


def class_(name: str = "h100", spec: str = f"{{hashes: [{{hash: '{HASH}'}}]}}") -> str:
    return f"{VERSION}kind: {CLASS}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n"


def faults(text: str) -> list[str]:
    with pytest.raises(PolicyInvalidError) as caught:
        read_objects(text.encode())
    return [str(x) for x in caught.value.findings]


def test_the_objects_are_named_in_the_order_of_the_file() -> None:
    text = class_() + policy("{minLevel: L1}") + class_("a-1.b")
    wanted = (ObjectKey(CLASS, "h100"), ObjectKey(POLICY, "cluster"), ObjectKey(CLASS, "a-1.b"))
    assert read_objects(text.encode()) == wanted


def test_a_file_may_have_classes_alone_or_the_policy_alone() -> None:
    assert read_objects(class_().encode()) == (ObjectKey(CLASS, "h100"),)
    assert read_objects(policy().encode()) == (ObjectKey(POLICY, "cluster"),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (policy("{drvers: {}}"), f"{POLICY}/cluster: spec.drvers: unknown key; did you mean"),
        (policy("{minLevel: L9}"), f"{POLICY}/cluster: spec.minLevel: got 'L9'; expected L0 or L1"),
        (policy("{hintWeight: 101}"), f"{POLICY}/cluster: spec.hintWeight: got 101; expected a"),
        (policy(name="other"), f"{POLICY}/other: metadata.name: got 'other'; expected cluster"),
        (class_(spec="{hashes: []}"), f"{CLASS}/h100: spec.hashes: got a list of 0; expected 1 to"),
        (class_(spec="{hashes: [{hash: x}]}"), f"{CLASS}/h100: spec.hashes[0].hash: got 'x'; exp"),
        (class_(spec="~"), f"{CLASS}/h100: spec: got None; expected a mapping"),
        (class_() * 2, f"{CLASS}/h100 (line 6): got it again; expected each object once"),
        (
            class_().replace("spec:", "spce:") + "",
            f"{CLASS}/h100: spce (line 1): unknown key; did you mean spec?",
        ),
        (
            policy() + class_().replace("spec:", "minLevel: L1\nspec:"),
            f"{CLASS}/h100: minLevel (line 6): unknown key; expected one of apiVersion, kind, ",
        ),
        (
            class_().replace("gpuwarden.dev/v1alpha1", "gpuwarden.dev/v1"),
            f"{CLASS}/h100: apiVersion (line 1): got 'gpuwarden.dev/v1'; expected gpuwarden",
        ),
        (
            class_().removeprefix(VERSION),
            f"{CLASS}/h100: apiVersion (line 1): got None; expected gpuwarden.dev/v1alpha1",
        ),
        (
            class_("H100"),
            f"{CLASS}: metadata.name (line 1): got 'H100'; expected 1 to 253 characters of a-z",
        ),
        (class_("a" * 254), f"{CLASS}: metadata.name (line 1): got 'aaa"),
        (class_("1"), f"{CLASS}: metadata.name (line 1): got 1; expected 1 to 253 characters"),
        (class_("a..b"), f"{CLASS}: metadata.name (line 1): got 'a..b'; expected 1 to 253"),
        (
            class_().replace("metadata: {name: h100}", "metadata: 7"),
            f"{CLASS}: metadata.name (line 1): got None; expected 1 to 253 characters",
        ),
        (
            class_() + class_("b").replace(CLASS, "AttestatonClass"),
            f"kind (line 6): got 'AttestatonClass'; expected {POLICY} or {CLASS}; did you mean A",
        ),
        (
            class_() + "kind: [1]\n",
            f"kind (line 6): got a list of 1; expected {POLICY} or {CLASS}",
        ),
        (class_() + "- a\n", "the document (line 6): got a list of 1; expected a mapping"),
        (class_() + "a: 1\na: 2\n", "the document (line 7): got key 'a' again; expected each key"),
        ("#" * (MAX_BYTES + 1), f"the document: got more than {MAX_BYTES} bytes; expected at most"),
    ],
)
def test_a_fault_names_the_object_its_field_and_what_was_expected(text: str, expected: str) -> None:
    assert [x for x in faults(text) if x.startswith(expected)], faults(text)


def test_every_fault_of_every_object_is_named() -> None:
    wrong = policy("{minLevel: L9, allowedHashes: [q]}") + class_(spec="{hashes: [{}]}")
    assert len(faults(wrong + class_("B"))) == 3
    assert len(faults(policy("{allowedHashes: [q, r]}") + class_("B"))) == 3


def test_a_name_may_have_253_characters() -> None:
    name = "a" * 253
    assert read_objects(class_(name).encode()) == (ObjectKey(CLASS, name),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"kind: {POLICY}\n", True),
        (f"a: 1\n---\nkind:  '{CLASS}' # a class\r\n", True),
        (f"kind: {CLASS}\na: [\n", True),
        (f"kind: {CLASS}es\n", False),
        (f"a:\n  kind: {CLASS}\n", False),
        (f"# kind: {CLASS}\nkind: Policy\n", False),
    ],
)
def test_a_manifest_is_known_by_its_line(text: str, expected: bool) -> None:
    assert has_objects(text.encode()) is expected
