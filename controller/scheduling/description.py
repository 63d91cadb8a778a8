"""Requirements as lines for people: what was understood. Pure."""

from collections.abc import Iterator

from controller.fleet.view import Level
from controller.scheduling.requirements import Requirements


def describe(needs: Requirements) -> tuple[str, ...]:
    """One line per wish, in the order in which they are decided."""
    return tuple(_lines(needs)) if needs.guarded else ()


def _lines(needs: Requirements) -> Iterator[str]:
    if needs.hashes is not None:
        yield f"attestation hash: {' or '.join(sorted(needs.hashes))}"
    if needs.attestation_class is not None:
        yield f"attestation class: {needs.attestation_class}"
    if needs.min_level is not Level.NONE:
        yield f"evidence level: {needs.min_level} or higher"
    if needs.place is not None:
        yield f"place: node {needs.place.node}, devices {', '.join(map(str, needs.place.devices))}"
    elif needs.mapped:
        yield "place: not known until the pod has its ordinal"
    if needs.uuids:
        yield f"GPUs: {', '.join(needs.uuids)}"
    if needs.selector is not None:
        yield f"GPU selector: {needs.selector.text}"
    if needs.labels:
        yield f"GPU labels: {', '.join(sorted(needs.labels))}"
    if needs.accepts is not None:
        yield f"accepted guarantee: {needs.accepts}"
    yield f"number of GPUs: {needs.count}"
