"""The reference pages say what the code does."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.objects.policy_objects import CLASS_KIND, POLICY_KIND, PolicyObjects
from controller.placement.filter_and_score import bin_packing, prioritize_nodes
from controller.placement.gpu_map import parse_gpu_map
from controller.placement.keys import HINT_ANNOTATIONS, REQUIREMENT_ANNOTATIONS, RequirementRules
from controller.placement.refusals import REFUSALS
from controller.placement.requirements import Requirements
from controller.placement.selector import FACTS
from controller.policies.file import decode_policy
from gpuwarden.policy.document import policy_schema
from gpuwarden.policy.objects import read_objects
from tests.builders.fleet_views import acceptance, gpu, node
from tests.builders.scenes import scene

DOCS = Path(__file__).resolve().parents[2] / "docs"
REQUIREMENTS = (DOCS / "reference/requirements.md").read_text()
POLICY = (DOCS / "reference/policy.md").read_text()
SCORING = (DOCS / "scoring.md").read_text()


@pytest.mark.parametrize(
    "word",
    sorted(
        {
            *REQUIREMENT_ANNOTATIONS,
            *HINT_ANNOTATIONS,
            *RequirementRules().hash_keys,
            *FACTS,
            *REFUSALS,
        }
    ),
)
def test_every_key_and_code_is_on_the_page(word: str) -> None:
    assert f"`{word}`" in REQUIREMENTS


def test_the_example_map_is_a_map() -> None:
    example = "\n".join(re.findall(r"^    (.*)$", REQUIREMENTS, re.MULTILINE)).replace("…", "00")
    found = parse_gpu_map(example)
    assert not isinstance(found, tuple)
    assert set(found) == {0, 1}


def test_the_example_policy_is_a_policy_and_the_objects_are_the_same() -> None:
    example, objects = re.findall(r"```yaml\n(.*?)```", POLICY, re.DOTALL)
    file = decode_policy(example.encode())
    assert file.classes["h100-2026"].hashes[1].not_before is not None
    assert [x.name for x in read_objects(objects.encode())] == ["h100-2026", "cluster"]
    parts: dict[Any, Any] = {POLICY_KIND: {}, CLASS_KIND: {}}
    for document in yaml.safe_load_all(objects):
        kind = POLICY_KIND if document["kind"] == "AttestationPolicy" else CLASS_KIND
        document["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        parts[kind] |= dict([kind.entry(json.dumps(document).encode())])
    found = PolicyObjects(parts[POLICY_KIND], parts[CLASS_KIND]).policy()
    assert replace(found, digest=file.digest) == file


def test_every_key_of_the_policy_is_on_the_page() -> None:
    for name, section in policy_schema()["$defs"].items():
        for key in section["properties"]:
            assert re.search(rf"[`.]{key}\b", POLICY), (name, key)


def test_the_table_of_bin_packing() -> None:
    assert [bin_packing(left) for left in (0, 1, 2, 3, 4)] == [4, 3, 2, 2, 1]
    assert "| bin packing | 4 | 3 | 2 | 1 |" in SCORING


def test_the_example_scores() -> None:
    island = [gpu(index, peers=["switch"]) for index in range(8)]
    where = scene(
        node("one", acceptance(gpus=[gpu(0)])),
        node("loose", acceptance(gpus=[gpu(index) for index in range(8)])),
        node("island", acceptance(gpus=island)),
    )
    pod = Requirements(managed=True, count=1)
    scores = prioritize_nodes(["one", "loose", "island"], pod, where)
    assert scores == {"one": 10, "loose": 4, "island": 2}
