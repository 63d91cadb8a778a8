import pytest

from controller.fleet.directory import FOREVER_NS, KnownNode, NodeDirectory
from sandbox.insecure_static_nodes import InsecureStaticNodes


def test_it_knows_what_it_was_told() -> None:
    directory: NodeDirectory = InsecureStaticNodes(["gpu-1", "gpu-2"])
    nodes = directory.snapshot().nodes
    assert dict(nodes) == {"gpu-1": KnownNode(), "gpu-2": KnownNode()}
    assert "gpu-3" not in nodes
    assert directory.snapshot().fresh_until_ns == FOREVER_NS


def test_a_star_knows_any_node_name_but_nothing_else() -> None:
    nodes = InsecureStaticNodes(["*"]).snapshot().nodes
    assert nodes.get("anything.example") == KnownNode()
    assert nodes.get("Not_A_Node") is None
    assert (len(nodes), list(nodes)) == (0, [])


@pytest.mark.parametrize("name", ["GPU", "", "a b", "gpu-*"])
def test_a_wrong_name_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="RFC 1123"):
        InsecureStaticNodes([name])


def test_it_says_that_it_is_insecure() -> None:
    assert "InsecureStaticNodes" in InsecureStaticNodes(["gpu-1"]).warning()
    assert "none" in InsecureStaticNodes([]).warning()


def test_a_node_may_be_given_a_uid() -> None:
    nodes = InsecureStaticNodes(["gpu-1=uid-1", "gpu-2"]).snapshot().nodes
    assert (nodes["gpu-1"].uid, nodes["gpu-2"].uid) == ("uid-1", None)
    with pytest.raises(ValueError, match="node name ''"):
        InsecureStaticNodes(["=uid-1"])
