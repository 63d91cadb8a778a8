"""Which node a map means by the label `gpu-node-name`."""

from controller.fleet.directory import KnownNode
from controller.kube.api.cache import Change
from controller.kube.api.resources import Entry
from controller.kube.nodes.nodes import NODE_KIND, MapNames


def entry(map_name: str | None) -> Entry[KnownNode]:
    return Entry("v", "u", KnownNode("u", map_name=map_name))


def change(node: str, *, old: str | None = None, new: str | None = None) -> Change[KnownNode]:
    """`old` and `new` labels; a node without a label is there all the same."""
    return Change(node, entry(old), entry(new))


def names(*changes: Change[KnownNode]) -> dict[str, str]:
    made = MapNames()
    for each in changes:
        made.observe((each,), None)
    return made.only


def test_a_label_names_its_node_until_it_is_gone() -> None:
    appears = Change("gpu-a", None, entry("node1"))
    assert names(appears) == {"node1": "gpu-a"}
    assert names(appears, change("gpu-a", old="node1", new="node1")) == {"node1": "gpu-a"}
    assert names(appears, change("gpu-a", old="node1", new="node2")) == {"node2": "gpu-a"}
    assert names(appears, change("gpu-a", old="node1")) == {}
    assert names(appears, Change("gpu-a", entry("node1"), None)) == {}


def test_of_two_nodes_with_one_name_neither_is_meant() -> None:
    both = (change("gpu-a", new="node1"), change("gpu-b", new="node1"))
    assert names(*both) == {}
    assert names(*both, change("gpu-a", old="node1")) == {"node1": "gpu-b"}
    assert names(*both, change("gpu-a", old="node1"), change("gpu-b", old="node1")) == {}


def test_a_label_that_was_never_seen_leaves_nothing_behind() -> None:
    assert names(change("gpu-a", old="node1")) == {}


def test_the_provider_id_of_a_node_is_kept_where_it_has_one() -> None:
    meta = b'{"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"spec":'
    cloud, metal = meta + b'{"providerID":"aws:///z/i-0123"}}', meta + b"{}}"
    found = [NODE_KIND.entry(body)[1].value.provider_id for body in (cloud, metal)]
    assert found == ["aws:///z/i-0123", None]
