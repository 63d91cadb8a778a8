from tests.e2e.product.entries import AGENT, CONTROLLER, shipped_entries


def test_the_shipped_entries_of_a_node() -> None:
    found = shipped_entries("gpu-1")
    ids = {name: entry.spiffe_id for name, entry in found.items()}
    assert ids == {
        AGENT: "spiffe://example.org/gpuwarden/agent/gpu-1",
        CONTROLLER: "spiffe://example.org/gpuwarden/controller",
    }
    for name, entry in found.items():
        assert list(entry.selectors) == ["k8s:ns:gpuwarden-system", f"k8s:sa:{name}"]
