"""The gpu-scheduling-map, line by line."""

import pytest

from controller.placement.pod import Place, is_device_uuid, parse_gpu_map


def lines_at_fault(text: str) -> list[str]:
    found = parse_gpu_map(text)
    assert isinstance(found, tuple), found
    return [finding.key for finding in found]


def test_seed_vectors() -> None:
    assert parse_gpu_map("0=node1:0,1\n1=node2:2\n2=node3:0,1,2\n3=node4:3\n4=node4:3") == {
        0: Place("node1", (0, 1)),
        1: Place("node2", (2,)),
        2: Place("node3", (0, 1, 2)),
        3: Place("node4", (3,)),
        4: Place("node4", (3,)),
    }
    assert parse_gpu_map("  0 = node1 : 0,1  \n\n1=node2:2") == {
        0: Place("node1", (0, 1)),
        1: Place("node2", (2,)),
    }


def test_comments_crlf_uuids_and_dotted_node_names() -> None:
    text = "# cards of the lab\r\n0=gpu-1.lab.example:GPU-ab, GPU-cd\r\n1=n:MIG-GPU-ab/7/0"
    assert parse_gpu_map(text) == {
        0: Place("gpu-1.lab.example", ("GPU-ab", "GPU-cd")),
        1: Place("n", ("MIG-GPU-ab/7/0",)),
    }


@pytest.mark.parametrize(
    "line",
    [
        "x=n:0",
        "-1=n:0",
        "=n:0",
        "0",
        "0=n",
        "0:n=0",
        "0=node1:",
        "0=:0",
        "0=Node_1:0",
        "0=n:0,0",
        "0=n:0,00",
        "0=n:MIG-a,MIG-b",
        "0=n:GPU-a,MIG-b",
        "0=n:MIG-GPU-a/1/0,0",
        "0=n:0,,1",
        "0=a:0,1;1=b:2",
        "0=n:1000",
        "0=n:-1",
        "0=n:GPU-",
        "0=n:GPU-a b",
        "0=n:" + ",".join(map(str, range(65))),
        "9999999999999999999=n:0",
        "٣=n:0",
    ],
)
def test_a_wrong_line_is_named_and_spoils_the_map(line: str) -> None:
    assert lines_at_fault(f"7=good:0\n{line}") == ["gpu-scheduling-map line 2"]


def test_of_a_line_with_several_mig_devices_it_is_said_why() -> None:
    found = parse_gpu_map("0=n:MIG-a,MIG-b")
    assert isinstance(found, tuple)
    (finding,) = found
    assert "0=n:MIG-a,MIG-b is wrong, expected a MIG device alone" in str(finding)


def test_every_wrong_line_is_reported() -> None:
    assert lines_at_fault("x=n:0\n0=n:0\n\n0=m:1\n1=n:") == [
        f"gpu-scheduling-map line {number}" for number in (1, 4, 5)
    ]


@pytest.mark.parametrize("text", ["", " \n ", "# only a comment", "0=n:0" * 20_000, "\n" * 5000])
def test_a_map_without_lines_or_without_bounds_is_refused(text: str) -> None:
    assert lines_at_fault(text)


@pytest.mark.parametrize("text", ["GPU-1", "MIG-2", "MIG-GPU-3/1/0"])
def test_uuids(text: str) -> None:
    assert is_device_uuid(text)


@pytest.mark.parametrize("text", ["gpu-1", "GPU-", "GPU-1/1/0", "MIG-GPU-3/1", "1", "GPU-1\n"])
def test_what_is_no_uuid(text: str) -> None:
    assert not is_device_uuid(text)
