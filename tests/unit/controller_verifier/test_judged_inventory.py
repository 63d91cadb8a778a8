"""An inventory that a stream has shown before is not worked out again, nor taken for another."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controller.fleet.attestation_result import Accepted, Refused
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import acceptance_of
from controller.policy import Level, Policy
from controller.verifier.context import HardwareQuestion, Standing
from gpuwarden.evidence.model import FailedRead, NvLink
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.evidence import NODE, Scene
from tests.builders.inventory import gpu, host, inventory, lost_gpu


def two_rounds(scene: Scene, **second: Any) -> tuple[Accepted, Accepted]:
    """Two rounds of one stream; the second evidence differs by `second`."""
    stream = scene.opened()
    first = scene.answer(stream)
    assert isinstance(first, Accepted), first
    scene.remember(first)
    scene.evidence = scene.evidence | second
    result = scene.answer(first.stream, 2)
    assert isinstance(result, Accepted), result
    return first, result


def test_the_same_inventory_has_the_very_same_documents() -> None:
    first, second = two_rounds(Scene())
    assert second.evidence.inventory is first.evidence.inventory
    assert second.class_document is first.class_document
    assert second.identity_document is first.identity_document
    assert second.evidence_digest != first.evidence_digest
    assert second.evidence.seq == first.evidence.seq + 1


def test_the_same_inventory_in_other_bytes_is_the_same_inventory() -> None:
    scene = Scene()
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    document = scene.document(first.stream, scene.challenge(first.stream, 2))
    spaced = msgspec.json.format(msgspec.json.encode(document), indent=1)
    scene.payload = spaced
    second = scene.answer(first.stream, 2)
    assert isinstance(second, Accepted), second
    assert second.evidence.inventory is first.evidence.inventory
    assert second.class_document is first.class_document


@pytest.mark.parametrize(
    "changed",
    [
        inventory(host=host(driver="575.51.03")),
        inventory(gpu(nvlinks=(NvLink(link=0, active=True, peer="00000000:C0:00.0"),))),
        inventory(gpu(ecc=False)),
    ],
    ids=["driver", "link", "ecc"],
)
def test_another_inventory_is_judged_as_if_it_were_the_first(changed: Any) -> None:
    _, second = two_rounds(Scene(), inventory=changed)
    fresh = Scene(evidence={"inventory": changed}).accepted()
    assert second.evidence.inventory == changed
    assert second.attestation_hash == fresh.attestation_hash
    assert second.class_document == fresh.class_document
    assert second.identity_document == fresh.identity_document


def test_a_failed_read_is_another_inventory() -> None:
    scene = Scene()
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    read = FailedRead(
        fact="vbios", gpu=gpu().uuid, call="nvmlDeviceGetVbiosVersion", error="UNKNOWN"
    )
    scene.evidence = {"failed_reads": (read,)}
    result = scene.answer(first.stream, 2)
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_INCOMPLETE


def test_pins_and_policy_are_asked_again_about_the_same_inventory() -> None:
    scene = Scene()
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    scene.policy = Policy(denied_keys=frozenset({gpu().uuid}))
    denied = scene.answer(first.stream, 2)
    assert isinstance(denied, Refused)
    assert denied.code is ReasonCode.GPU_DENIED
    scene.policy = Policy(denied_drivers=frozenset({host().driver or ""}))
    forbidden = scene.answer(first.stream, 3)
    assert isinstance(forbidden, Refused)
    assert forbidden.code is ReasonCode.POLICY_DENIED


class Rising:
    """Hardware that is confirmed from the second question on."""

    level = Level.L0

    def __call__(self, question: HardwareQuestion) -> Standing | Refusal:
        standing = replace(question.standing, level=self.level)
        self.level = Level.L2
        return standing


def test_another_standing_makes_other_documents_of_the_same_inventory() -> None:
    first, second = two_rounds(Scene(hardware=Rising()))
    assert (first.level, second.level) == (Level.L0, Level.L2)
    assert second.attestation_hash != first.attestation_hash
    assert b'"level":"L2"' in second.class_document


def test_another_node_uid_makes_another_identity_of_the_same_inventory() -> None:
    scene = Scene(directory=DirectorySnapshot({NODE: KnownNode(None)}))
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    scene.directory = DirectorySnapshot({NODE: KnownNode("uid-9")})
    second = scene.answer(first.stream, 2)
    assert isinstance(second, Accepted)
    assert b"uid-9" in second.identity_document
    assert b"uid-9" not in first.identity_document


def test_views_of_unchanged_gpus_are_kept_unless_something_was_said_about_them() -> None:
    first, second = two_rounds(Scene(evidence={"inventory": inventory(gpu(0), gpu(1))}))
    before = acceptance_of(first, None, accepted_wall_ns=1)
    assert acceptance_of(second, before, accepted_wall_ns=2).gpus is before.gpus
    ill = replace(before, gpus=(replace(before.gpus[0], unhealthy="xid 79"), before.gpus[1]))
    after = acceptance_of(second, ill, accepted_wall_ns=2)
    assert after.gpus == before.gpus
    gone = replace(second, lost=(lost_gpu(5),))
    assert len(acceptance_of(gone, before, accepted_wall_ns=2).gpus) == 3
