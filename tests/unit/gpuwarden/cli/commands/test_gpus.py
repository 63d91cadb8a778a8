"""`gpus`: every GPU with serial and UUID, and the MIG devices."""

import json

from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.fleet_messages import gpu_message
from tests.builders.inventory import gpu_uuid, mig_uuid
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli


def test_gpus_are_listed_with_who_has_them(ask: Cli, fleet: FakeFleetServer) -> None:
    slices = [
        pb.MigDevice(uuid=mig_uuid(1), profile="1g.10gb", state="reserved", reserved_by=["a/mig"]),
        pb.MigDevice(uuid=mig_uuid(2), profile="1g.10gb", state="free"),
    ]
    fleet.gpus = [
        gpu_message(0, state="reserved", reserved_by=["a/x", "a/y"], process_count=1),
        gpu_message(1, mig="on", mig_devices=slices, state="split"),
        gpu_message(2, state="used", process_count=2),
        gpu_message(3, state="used", process_count=1),
        gpu_message(4, state="used", process_count=1, allocated_to=["b/z"]),
        gpu_message(5, state="free"),
        gpu_message(6, state="unavailable", process_count=1),
    ]
    out = ask("gpus").out
    cards, devices = out.split("\n\n")
    assert cards.splitlines()[0].split() == [
        "NODE", "GPU", "UUID", "PRODUCT", "STATE", "USED-BY",
    ]  # fmt: skip
    rows = [line.split() for line in cards.splitlines()]
    assert rows[1] == [
        "gpu-a1", "0", "GPU-00000001", "H100", "80GB", "HBM3", "reserved", "a/x,", "a/y",
    ]  # fmt: skip
    assert [" ".join(row[6:]) for row in rows[2:]] == [
        "split -",
        "used 2 processes",
        "used 1 process",
        "used b/z (by kubelet)",
        "free -",
        "unavailable -",
    ]
    assert [line.split() for line in devices.splitlines()[1:]] == [
        ["gpu-a1", "1", "MIG-00000001", "1g.10gb", "reserved", "a/mig"],
        ["gpu-a1", "1", "MIG-00000002", "1g.10gb", "free", "-"],
    ]
    assert all(len(x) <= 80 for x in out.splitlines())


def test_gpus_are_chosen_by_state_class_and_label(ask: Cli, fleet: FakeFleetServer) -> None:
    one = "v1:sha256:" + "a" * 64
    fleet.classes = [pb.Class(attestation_hash=one, names=["one"])]
    free = [pb.MigDevice(uuid=mig_uuid(1), state="free")]
    fleet.gpus = [
        gpu_message(0, state="free", attestation_hash=one, labels=["big"]),
        gpu_message(1, state="split", mig_devices=free),
        gpu_message(2, state="used", labels=["big", "new"]),
    ]
    for options, expected in (
        (("--state", "free"), (1, 2)),
        (("--state", "used", "--state", "split"), (2, 3)),
        (("--class", "one"), (1,)),
        (("-l", "big"), (1, 3)),
        (("-l", "big,new"), (3,)),
        (("--state", "free", "-l", "new"), ()),
    ):
        chosen = ask("gpus", "-o", "name", *options).lines
        assert chosen == [gpu_uuid(x) for x in expected], options


def test_gpus_of_one_node_by_name(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.gpus = [gpu_message(0), gpu_message(1, node="other")]
    assert ask("gpus", "--node", "other", "-o", "name").out == f"{gpu_uuid(2)}\n"
    assert ask("gpus", "--node", "third").out == "No GPUs.\n"


def test_gpus_wide_and_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.gpus = [gpu_message(0, nvlinks_active=17, nvlinks_total=18, labels=["big", "x"])]
    wide = ask("gpus", "-o", "wide").lines
    assert "NVLINKS" in wide[0]
    assert "17/18" in wide[1]
    assert gpu_uuid(1) in wide[1]
    assert "1654223000000" in wide[1]
    assert "79.6Gi" in wide[1]
    assert "big,x" in wide[1]
    assert json.loads(ask("gpus", "-o", "json").out)["gpus"][0]["nvlinksTotal"] == 18
