"""extender/v1 on the wire, as kube-scheduler and older callers write it."""

import json
from typing import Any

import pytest

from controller.web.verbs import (
    ArgsError,
    decode_args,
    encode_error,
    encode_filter_result,
    encode_priorities,
)
from tests.builders.pods import pod_json

POD = pod_json({"a": "b"})
KEYS = ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]


def body(**args: Any) -> bytes:
    return json.dumps(args).encode()


def full_node(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"é": "1"}},
        "status": {"images": [{"names": ["x"], "sizeBytes": 12345678901234567890}]},
    }


def go_node(name: str) -> bytes:
    """As Go writes it inside a list: compact, name first."""
    return json.dumps(full_node(name), separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "keys",
    [
        ("Pod", "Nodes", "NodeNames"),
        ("pod", "nodes", "nodenames"),
        ("pod", "nodes", "nodeNames"),
        ("POD", "NODES", "NODENAMES"),
        ("Pod", "nodes", "NodeNames"),
    ],
)
def test_keys_in_any_case_and_nulls(keys: tuple[str, str, str]) -> None:
    pod, nodes, names = keys
    args = decode_args(body(**{pod: POD, nodes: None, names: ["n1", "n2"]}))
    assert (args.names, args.nodes) == (["n1", "n2"], None)
    assert args.pod.annotations == {"a": "b"}
    listed = decode_args(body(**{pod: POD, nodes: {"items": [full_node("m")]}, names: None}))
    assert listed.names == ["m"]
    assert listed.nodes is not None


@pytest.mark.parametrize("args", [{"NodeNames": ["n"]}, {"nodenames": ["n"], "Nodes": None}])
def test_lists_may_be_absent(args: dict[str, Any]) -> None:
    assert decode_args(body(Pod=POD, **args)).names == ["n"]


def test_no_lists_at_all_is_an_empty_list_of_names() -> None:
    args = decode_args(body(Pod=POD, Nodes=None, NodeNames=None))
    assert (args.names, args.nodes) == ([], None)
    assert json.loads(encode_filter_result(args, [], {}))["NodeNames"] == []


def test_nodes_win_over_an_empty_list_of_names() -> None:
    args = decode_args(body(Pod=POD, Nodes={"items": [full_node("n")]}, NodeNames=[]))
    assert args.names == ["n"]
    assert args.nodes is not None
    empty = decode_args(body(Pod=POD, Nodes={"items": None}, NodeNames=None))
    assert (empty.names, empty.nodes) == ([], [])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "decode args"),
        (b"{", "decode args"),
        (b"[]", "decode args"),
        (b"null", "decode args"),
        (b'{"Pod":' + b"[" * 100_000, "decode args"),
        (b'{"Pod":{},"NodeNames":[1],"Nodes":null}', "decode args"),
        (b'{"Pod":{},"NodeNames":"n","Nodes":null}', "decode args"),
        (b'{"Pod":{},"NodeNames":["\xff"],"Nodes":null}', "decode args"),
        (b'{"Pod":{},"Nodes":{"items":[{"metadata":{}}]},"NodeNames":null}', "decode args"),
        (b'{"Pod":{},"Nodes":{"items":[7]},"NodeNames":null}', "decode args"),
        (b'{"Pod":{"metadata":{"annotations":{"a":1}}},"NodeNames":[]}', "not a Pod"),
        (b'{"pod":{},"POD":{},"nodenames":[]}', "repeated in another case"),
        (b'{"NodeNames":["n"],"Nodes":null}', "missing pod in args"),
        (b'{"Pod":null,"NodeNames":["n"],"Nodes":null}', "missing pod in args"),
        (json.dumps({"Pod": {}, "NodeNames": ["n" * 254]}).encode(), "length <= 253"),
        (json.dumps({"pod": {}, "nodenames": ["n" * 254]}).encode(), "length <= 253"),
        (
            json.dumps(
                {"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "n" * 254}}]}}
            ).encode(),
            "length <= 253",
        ),
        (json.dumps({"Pod": {}, "NodeNames": ["n"] * 100_001}).encode(), "more than 100000"),
    ],
)
def test_undecodable_bodies(data: bytes, expected: str) -> None:
    with pytest.raises(ArgsError) as error:
        decode_args(data)
    assert expected in str(error.value)


def test_answer_by_names_has_exactly_gos_keys() -> None:
    args = decode_args(body(Pod=POD, NodeNames=["n2", "n1"], Nodes=None))
    found = json.loads(encode_filter_result(args, ["n2"], {"n1": "why"}))
    assert list(found) == KEYS
    assert found == {
        "Nodes": None,
        "NodeNames": ["n2"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n1": "why"},
        "Error": "",
    }


def test_answer_with_nodes_echoes_their_bytes() -> None:
    nodes = [go_node("n1"), json.dumps(full_node("n2"), indent=1).encode(), go_node("n3")]
    data = b'{"Pod":%s,"Nodes":{"metadata":{},"items":[%s]},"NodeNames":null}' % (
        json.dumps(POD).encode(),
        b",".join(nodes),
    )
    args = decode_args(data)
    assert args.names == ["n1", "n2", "n3"]
    answer = encode_filter_result(args, ["n1", "n2"], {"n3": "why"})
    assert nodes[0] in answer
    assert nodes[1] in answer
    assert nodes[2] not in answer
    found = json.loads(answer)
    assert found["NodeNames"] is None
    assert found["Nodes"]["items"] == [full_node("n1"), full_node("n2")]
    assert json.loads(encode_filter_result(args, [], {}))["Nodes"]["items"] == []


@pytest.mark.parametrize("name", ["n-1", "n" * 253, "a\\u0062", "é"])
def test_name_of_a_node_is_read_as_json_would(name: str) -> None:
    node = b'{"metadata":{"name":"%s","uid":"u"}}' % name.encode()
    args = decode_args(b'{"Pod":{},"Nodes":{"items":[%s]},"NodeNames":null}' % node)
    assert args.names == [json.loads(node)["metadata"]["name"]]


def test_error_and_priorities() -> None:
    assert json.loads(encode_error("why"))["Error"] == "why"
    assert list(json.loads(encode_error(""))) == KEYS
    assert json.loads(encode_priorities({"n1": 7, "n2": 0})) == [
        {"Host": "n1", "Score": 7},
        {"Host": "n2", "Score": 0},
    ]
    assert encode_priorities({}) == b"[]"


def test_decoding_does_not_copy_out_of_a_writable_buffer() -> None:
    data = bytearray(body(Pod=POD, NodeNames=["n1"], Nodes=None))
    assert decode_args(data).names == decode_args(memoryview(data)).names == ["n1"]
