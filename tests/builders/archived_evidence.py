"""Evidence as it goes to the store: signed by an agent of a small CA."""

from controller.fleet.attestation_result import StreamState
from gpuwarden.audit.archived_evidence import ArchivedEvidence
from tests.builders.evidence import Scene


def archived_evidence(scene: Scene | None = None, number: int = 1) -> ArchivedEvidence:
    """The answer to challenge `number`."""
    scene = scene or Scene()
    stream = scene.open()
    assert isinstance(stream, StreamState)
    message = scene.signed(stream, scene.challenge(stream, number))
    return ArchivedEvidence(
        message.payload_type,
        message.payload,
        message.signature,
        stream.chain,
        scene.roots,
        scene.now.wall_ms,
    )
