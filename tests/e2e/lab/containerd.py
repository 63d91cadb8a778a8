"""containerd with runc and the CNI plugins, in the node's namespaces; images are imported.

Pods of a RuntimeClass with the handler `nvidia` are started by NVIDIA's container toolkit, which
gives a container the devices that `NVIDIA_VISIBLE_DEVICES` names out of the CDI specifications.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.capsule import RUN_S, Capsule, CapsuleError
from tests.e2e.lab.images import Image, write_archive
from tests.e2e.lab.kubeconfig import written
from tests.e2e.lab.program import Program, Site

SOCKET = "/run/containerd/containerd.sock"
CDI = "/var/lib/containerd/cdi"
"""Where CDI specifications are looked for, inside the node."""
GPU_KIND = "nvidia.com/gpu"
TOOLKIT = "nvidia"
"""The handler whose containers NVIDIA's toolkit starts."""
_NAMESPACE = "k8s.io"
_IMPORT_S = 180.0
"""Hundreds of megabytes, on a busy disk."""
_NRI_S = 30
"""containerd gives a plugin two seconds, and then makes the container without it."""
_DIGEST = re.compile(r"\bsha256:[0-9a-f]{64}\b")


class Containerd(Program):
    """`sandbox` is the image of every pod's first container."""

    def __init__(self, site: Site, capsule: Capsule, plan: AddressPlan, sandbox: str) -> None:
        super().__init__(site, "containerd")
        self._capsule = capsule
        self._plan = plan
        self._sandbox = sandbox

    def arguments(self) -> Sequence[str]:
        network = self.data / "cni"
        network.mkdir(exist_ok=True)
        written(network / "10-lab.conflist", network_configuration(self._plan))
        configuration = self.data / "config.toml"
        plugins = self.site.programs["bridge"].parent
        programs = self.site.programs
        self._toolkit.write_text(toolkit_text(programs["runc"]))
        runtimes = {"runc": programs["runc"], TOOLKIT: programs["nvidia-container-runtime"]}
        configuration.write_text(configuration_text(self._sandbox, runtimes, plugins, network))
        return (str(self.site.programs["containerd"]), f"--config={configuration}")

    def environment(self) -> dict[str, str]:
        """The shim lies beside containerd; runtimes inherit what it has."""
        folder = self.site.programs["containerd-shim-runc-v2"].parent
        return {
            "PATH": f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "NVIDIA_CTK_CONFIG_FILE_PATH": str(self._toolkit),
        }

    @property
    def _toolkit(self) -> Path:
        return self.data / "toolkit.toml"

    def is_ready(self) -> bool:
        try:
            self.ctr("version")
        except CapsuleError:
            return False
        return True

    def ctr(self, *arguments: str, timeout_s: float = RUN_S) -> str:
        """Run containerd's own client to its end; its standard output."""
        program = str(self.site.programs["ctr"])
        command = (program, "-a", SOCKET, "-n", _NAMESPACE, *arguments)
        return self._capsule.run(*command, timeout_s=timeout_s)

    def load(self, image: Image) -> None:
        """Make an image and import it."""
        archive = self.data / f"{image.name.replace('/', '-').replace(':', '-')}.tar"
        write_archive(image, archive)
        self.load_archive(archive)
        archive.unlink()

    def load_archive(self, archive: Path) -> None:
        """Import a docker or OCI archive."""
        self.ctr("images", "import", str(archive), timeout_s=_IMPORT_S)

    def has(self, image: str) -> bool:
        """Whether there is an image of exactly this name."""
        return image in self.ctr("images", "list", "--quiet").split()

    def by_digest(self, image: str) -> str:
        """Give the image a second name, as a registry would: `repository@sha256:…`; that name."""
        listed = self.ctr("images", "list", f"name=={image}")
        (digest,) = set(_DIGEST.findall(listed))
        name = f"{image.rpartition(':')[0]}@{digest}"
        self.tag(image, name)
        return name

    def tag(self, image: str, name: str) -> None:
        """Give the image a second name."""
        if not self.has(name):
            self.ctr("images", "tag", image, name)


def network_configuration(plan: AddressPlan) -> dict[str, object]:
    """A bridge in the node with an address per pod; host ports."""
    return {
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(plan.pods)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def toolkit_text(runc: Path) -> str:
    """The toolkit's config.toml: devices out of CDI specifications, by the variable."""
    return f"""
[nvidia-container-runtime]
mode = "cdi"
runtimes = ["{runc}"]

[nvidia-container-runtime.modes.cdi]
default-kind = "{GPU_KIND}"
spec-dirs = ["{CDI}"]
"""


def configuration_text(
    sandbox: str, runtimes: Mapping[str, Path], plugins: Path, network: Path
) -> str:
    """containerd's config.toml, version 3."""
    return f"""
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
address = "{SOCKET}"

[ttrpc]
address = "{SOCKET}.ttrpc"

[plugins."io.containerd.nri.v1.nri"]
plugin_request_timeout = "{_NRI_S}s"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
enable_cdi = true
cdi_spec_dirs = ["{CDI}"]

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

{"".join(_runtime_text(name, program) for name, program in runtimes.items())}
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{network}"
"""


def _runtime_text(name: str, program: Path) -> str:
    """A low-level runtime; both are called as runc is."""
    return f"""
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
BinaryName = "{program}"
SystemdCgroup = false
"""
