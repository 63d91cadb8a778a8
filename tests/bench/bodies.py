"""Requests as kube-scheduler sends them: names only, whole Node objects of a big cloud, victims."""

import json
import random
from typing import Any

from tests.bench.fleet_of import holder_of, node_name

_LABELS = 68
_IMAGES = 34


def by_name(nodes: int, wanted_hash: str) -> bytes:
    """NodeNames only (`nodeCacheCapable: true`)."""
    names = [node_name(number) for number in range(nodes)]
    return _encoded({"Pod": _pod(wanted_hash), "Nodes": None, "NodeNames": names})


def in_full(nodes: int, wanted_hash: str) -> bytes:
    """Whole Node objects, about 14 KB each, in the order in which Go writes their fields."""
    draw = random.Random(1)  # noqa: S311 - the same body every time
    items = [_node(number, draw) for number in range(nodes)]
    args = {"Pod": _pod(wanted_hash), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    return _encoded(args)


def victims(nodes: int, wanted_hash: str) -> bytes:
    """ExtenderPreemptionArgs with UIDs only: every pod of the nodes would be evicted."""
    by_node = {
        node_name(number): {
            "Pods": [{"UID": holder_of(number, gpu)} for gpu in range(8)],
            "NumPDBViolations": 0,
        }
        for number in range(nodes)
    }
    pod = _pod(wanted_hash)
    return _encoded({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": by_node})


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _pod(wanted_hash: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "train-7d9f8-xk2lp",
            "namespace": "team-a",
            "uid": "2f9f8b8e-51a7-4a7b-9f0e-5a6f5d1c0b11",
            "labels": {"app": "train", "team": "a", "job-name": "train-7d9f8"},
            "annotations": {"gpuwarden.dev/required-hash": wanted_hash},
        },
        "spec": {
            "schedulerName": "gpuwarden",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/team-a/train:1.4.2",
                    "resources": {
                        "limits": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi"},
                        "requests": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi"},
                    },
                }
            ],
        },
    }


def _node(number: int, draw: random.Random) -> dict[str, Any]:
    name = node_name(number)
    labels = {
        f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{n:02d}": "true" for n in range(_LABELS)
    } | {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "pool": "gpu"}
    resources = {
        "cpu": "192",
        "ephemeral-storage": "7499361832Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": "2113481888Ki",
        "nvidia.com/gpu": "8",
        "pods": "250",
    }
    return {
        "metadata": {
            "name": name,
            "uid": f"{draw.getrandbits(32):08x}-51a7-4a7b-9f0e-{draw.getrandbits(48):012x}",
            "resourceVersion": str(draw.randrange(10**9)),
            "creationTimestamp": "2026-02-03T10:11:12Z",
            "labels": labels,
            "annotations": {
                f"node.example.io/note-{n}": f"{draw.getrandbits(256):064x}" for n in range(8)
            },
        },
        "spec": {
            "podCIDR": f"10.{number >> 8 & 255}.{number & 255}.0/24",
            "podCIDRs": [f"10.{number >> 8 & 255}.{number & 255}.0/24"],
            "providerID": f"cloud:///eu-north-2a/i-{draw.getrandbits(64):016x}",
            "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [_condition(kind) for kind in ("Memory", "Disk", "PID", "Net", "Ready")],
            "addresses": [
                {"type": "InternalIP", "address": f"10.0.{number >> 8 & 255}.{number & 255}"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "machineID": f"{draw.getrandbits(128):032x}",
                "systemUUID": f"{draw.getrandbits(128):032x}",
                "bootID": f"{draw.getrandbits(128):032x}",
                "kernelVersion": "6.8.0-1021-nvidia",
                "osImage": "Ubuntu 24.04.2 LTS",
                "containerRuntimeVersion": "containerd://2.0.5",
                "kubeletVersion": "v1.34.1",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "images": [_image(draw) for _ in range(_IMAGES)],
        },
    }


def _condition(kind: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "False",
        "lastHeartbeatTime": "2026-03-04T12:00:00Z",
        "lastTransitionTime": "2026-02-03T10:12:00Z",
        "reason": f"KubeletHasSufficient{kind}",
        "message": f"kubelet has sufficient {kind} available",
    }


def _image(draw: random.Random) -> dict[str, Any]:
    image = f"registry.example/library/image-{draw.randrange(1000)}"
    return {
        "names": [f"{image}@sha256:{draw.getrandbits(256):064x}", f"{image}:v{draw.randrange(99)}"],
        "sizeBytes": draw.randrange(10**9),
    }
