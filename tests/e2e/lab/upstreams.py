"""The upstream projects of the lab: which module builds what, with which flags.

Versions are not repeated here: they are read from the committed go.mod files.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.go_toolchain import Version, parsed

MODULES = Path(__file__).with_name("modules")
KUBERNETES = "kubernetes-1.35"
SPIRE = "spire"
SPIRE_CONTROLLER_MANAGER = "spire-controller-manager"
CERT_MANAGER = "cert-manager"
GRPCURL = "grpcurl"
VERSITYGW = "versitygw"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One Go module of ours that pins an upstream project's programs as its tools."""

    folder: str
    """Below modules/; the name of the project for people, too."""
    module: str
    """Whose version is the project's version; empty for our own program."""
    binaries: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    """(as `go install` calls it, as we do)."""
    cgo: bool = False
    tags: tuple[str, ...] = ()
    is_ours: bool = False
    """Whether the program is our own main.go, and not a tool of the module."""
    needs: tuple[str, ...] = ()
    """What must be there to build it, as in `tests.e2e.lab.machine`."""

    @property
    def path(self) -> Path:
        """Where go.mod and go.sum lie."""
        return MODULES / self.folder

    @property
    def version(self) -> str:
        """For example `1.35.4`; empty for our own program."""
        return required(self.go_mod, self.module) if self.module else ""

    @property
    def go_mod(self) -> str:
        """The text of go.mod."""
        return (self.path / "go.mod").read_text()

    def flags(self) -> tuple[str, ...]:
        """Arguments of `go install`, the same on every machine."""
        flags = ["-trimpath", "-buildvcs=false"]
        if self.tags:
            flags.append(f"-tags={','.join(self.tags)}")
        if self.folder.startswith("kubernetes"):
            flags.append(f"-ldflags={_kubernetes_version(self.version)}")
        return tuple(flags)


UPSTREAMS = (
    Upstream(
        "etcd",
        "go.etcd.io/etcd/server/v3",
        ("etcd", "etcdctl", "etcdutl"),
        renamed=(("server", "etcd"),),
    ),
    Upstream(
        KUBERNETES,
        "k8s.io/kubernetes",
        (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubectl",
            "kubelet",
        ),
    ),
    Upstream("probe", "", ("probe",), is_ours=True),
    Upstream(
        "containerd",
        "github.com/containerd/containerd/v2",
        ("containerd", "containerd-shim-runc-v2", "ctr"),
    ),
    Upstream(
        "runc",
        "github.com/opencontainers/runc",
        ("runc",),
        cgo=True,
        tags=("seccomp",),
        needs=("gcc", "pkg-config", "libseccomp"),
    ),
    Upstream(
        "toolkit",
        "github.com/NVIDIA/nvidia-container-toolkit",
        ("nvidia-container-runtime", "nvidia-ctk-installer"),
        cgo=True,
        needs=("gcc",),
    ),
    Upstream(
        "cni",
        "github.com/containernetworking/plugins",
        ("bridge", "host-local", "loopback", "portmap"),
    ),
    Upstream("coredns", "github.com/coredns/coredns", ("coredns",), is_ours=True),
    Upstream(
        SPIRE,
        "github.com/spiffe/spire",
        ("spire-agent", "spire-server"),
        cgo=True,
        needs=("gcc",),
    ),
    Upstream(
        SPIRE_CONTROLLER_MANAGER,
        "github.com/spiffe/spire-controller-manager",
        ("spire-controller-manager",),
        renamed=(("cmd", "spire-controller-manager"),),
    ),
    Upstream(CERT_MANAGER, "github.com/cert-manager/cert-manager", ("cert-manager",), is_ours=True),
    Upstream(GRPCURL, "github.com/fullstorydev/grpcurl", ("grpcurl",)),
    Upstream(VERSITYGW, "github.com/versity/versitygw", (VERSITYGW,)),
    Upstream(
        "kubernetes-1.34",
        "k8s.io/kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    ),
)
CONTROL_PLANE = ("etcd", KUBERNETES)
NODE = ("probe", "containerd", "runc", "toolkit", "cni", "coredns")
OLDER = "kubernetes-1.34"


def upstream(folder: str) -> Upstream:
    """The project of that name; KeyError where there is none."""
    return {found.folder: found for found in UPSTREAMS}[folder]


def kubernetes(version: str) -> Upstream:
    """The Kubernetes of exactly that version; ValueError says which there are."""
    known = {found.version: found for found in UPSTREAMS if found.module == "k8s.io/kubernetes"}
    if version not in known:
        raise ValueError(f"KUBERNETES is {version!r}, expected one of {', '.join(sorted(known))}")
    return known[version]


def required(go_mod: str, module: str) -> str:
    """The version that go.mod requires of a module, without its `v`."""
    found = re.search(rf"^(?:require )?\s*{re.escape(module)} v(\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise ValueError(f"go.mod does not require {module}")
    return found[1]


def least_go(go_mod: str) -> Version:
    """The Go version that a go.mod asks for."""
    found = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    if found is None:
        raise ValueError("go.mod has no line `go VERSION`")
    return parsed(found[1])


def _kubernetes_version(version: str) -> str:
    major, minor, _ = version.split(".")
    prefix = "-X k8s.io/component-base/version."
    return f"{prefix}gitVersion=v{version} {prefix}gitMajor={major} {prefix}gitMinor={minor}"
