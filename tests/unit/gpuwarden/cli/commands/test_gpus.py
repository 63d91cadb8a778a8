"""`gpus`: every GPU with serial and UUID, and the MIG devices."""

import json

from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.fleet_messages import gpu_message
from tests.builders.inventory import gpu_uuid, mig_uuid
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli


def test_gpus_are_listed_with_serial_and_uuid(ask: Cli, fleet: FakeFleetServer) -> None:
    slices = [pb.MigDevice(uuid=mig_uuid(1), profile="1g.10gb", memory_mib=9856)]
    fleet.gpus = [gpu_message(0), gpu_message(1, mig="on", mig_devices=slices, serial="")]
    out = ask("gpus").out
    cards, devices = out.split("\n\n")
    assert cards.splitlines()[0].split() == [
        "NODE", "INDEX", "UUID", "SERIAL", "PRODUCT", "MEMORY", "MIG", "HEALTH",
    ]  # fmt: skip
    assert gpu_uuid(1) in cards
    assert "1654223000000" in cards
    assert devices.splitlines()[1].split() == ["gpu-a1", "1", mig_uuid(1), "1g.10gb", "9.6Gi"]


def test_gpus_of_one_node_by_name(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.gpus = [gpu_message(0), gpu_message(1, node="other")]
    assert ask("gpus", "--node", "other", "-o", "name").out == f"{gpu_uuid(2)}\n"
    assert ask("gpus", "--node", "third").out == "No GPUs.\n"


def test_gpus_wide_and_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.gpus = [gpu_message(0, nvlinks_active=17, nvlinks_total=18, labels=["big", "x"])]
    wide = ask("gpus", "-o", "wide").lines
    assert "NVLINKS" in wide[0]
    assert "17/18" in wide[1]
    assert "big,x" in wide[1]
    assert json.loads(ask("gpus", "-o", "json").out)["gpus"][0]["nvlinksTotal"] == 18
