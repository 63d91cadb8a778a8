from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.cgroup import MAX_BYTES, pod_uid
from agent.claims.pods import ProcessPods

UID = "4f1f6b1c-6c6f-4d0e-9a34-5b7f0c2d9e11"
SLICE_UID = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
CONTAINER = "cri-containerd-" + "ab" * 32


@pytest.mark.parametrize(
    "text",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice/{CONTAINER}.scope\n",
        f"0::/kubepods.slice/kubepods-pod{SLICE_UID}.slice/{CONTAINER}.scope\n",
        f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}\n",
        f"0::/kubepods/pod{UID}/{CONTAINER}",
        (
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{SLICE_UID}.slice/{CONTAINER}.scope"
        ),
        f"0::/../../kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice/x.scope",
        (
            f"12:memory:/kubepods/burstable/pod{UID}/{CONTAINER}\n11:cpu,cpuacct:/kubepods/burstable/"
            f"pod{UID}/{CONTAINER}\n1:name=systemd:/kubepods/burstable/pod{UID}/{CONTAINER}\n0::/\n"
        ),
        f"0::/kubepods/pod{UID}/x/kubepods/pod{'0' * 8}-0000-0000-0000-{'0' * 12}/y",
        f"0::/lab/kubepods/burstable/pod{UID}/{'ab' * 32}",
        f"0::/../../pod{UID}/{'ab' * 32}",
        f"0::/../../../besteffort/pod{UID}/{'ab' * 32}",
        f"0::/../../../pod{UID}/x/pod{'0' * 8}-0000-0000-0000-{'0' * 12}/y",
        f"0::/../../kubepods-pod{SLICE_UID}.slice/{CONTAINER}.scope",
        f"0::/../kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE_UID}.slice/{CONTAINER}.scope",
        (
            f"11:devices:/system.slice/containerd.service/kubepods-burstable-pod{SLICE_UID}.slice"
            f":cri-containerd:{'ab' * 32}\n"
        ),
    ],
)
def test_the_pod_of_both_drivers_and_versions(text: str) -> None:
    assert pod_uid(text) == UID


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods/burstable/pod{STATIC}/x",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{STATIC}.slice/x.scope",
        f"../../pod{STATIC}/x",
    ],
)
def test_a_static_pod_has_a_hash(path: str) -> None:
    assert pod_uid(f"0::/{path}") == STATIC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "nonsense",
        "0::/user.slice/user-1000.slice/session-2.scope",
        f"0::/user.slice/pod{UID}/x",
        f"0::/../../user.slice/pod{UID}/x",
        f"0::/../{'ab' * 32}/pod{UID}",
        f"0::/besteffort/pod{UID}/x",
        f"0::/x/../pod{UID}/x",
        f"0::/kubepods/pod{UID}:other:{'ab' * 32}/x",
        f"0::/system.slice/docker-{'ab' * 32}.scope",
        f"0::/kubepods/pod{UID}0/x",
        f"0::/kubepods/pod{UID.upper()}/x",
        f"1:cpu:/kubepods/pod{UID}/x\n2:memory:/kubepods/pod{'0' * 8}-0000-0000-0000-{'0' * 12}/x",
        f"0::/kubepods/pod{UID}/{'x' * MAX_BYTES}",
        f"0::/{'x/' * 100}kubepods/pod{UID}/x",
    ],
)
def test_what_is_no_pod_or_cannot_be_reported(text: str) -> None:
    assert pod_uid(text) is None


@given(st.text(alphabet="kubepods-slicepod_/:0f\n", max_size=400))
def test_any_text_is_answered(text: str) -> None:
    found = pod_uid(text)
    assert found is None or found.replace("-", "_") in text.replace("-", "_")


@given(st.uuids(), st.sampled_from(["", "burstable", "besteffort"]), st.text("abc/", max_size=40))
def test_every_uid_is_found_in_both_spellings(uid: object, quality: str, below: str) -> None:
    level = f"-{quality}" if quality else ""
    systemd = f"0::/kubepods.slice/kubepods{level}-pod{str(uid).replace('-', '_')}.slice/{below}"
    cgroupfs = f"0::/kubepods/{quality}/pod{uid}/{below}"
    assert pod_uid(systemd) == pod_uid(cgroupfs) == str(uid)


def test_processes_are_looked_up_in_proc(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_text(f"0::/kubepods/pod{UID}/x\n")
    pods = ProcessPods(tmp_path)
    assert pods(77) == UID
    assert pods(78) is None
