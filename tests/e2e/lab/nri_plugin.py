"""NVIDIA's container toolkit as the GPU operator runs it with `cdi.nriPluginEnabled`.

It writes the CDI specification of all GPUs, and gives containers the CDI devices that annotations
of their pods name, as a plugin of containerd by NRI. The driver is made up: libraries without
content, and /dev/null under the names of device files.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tests.e2e.lab.capsule import Capsule
from tests.e2e.lab.containerd import CDI
from tests.e2e.lab.program import Program, Site

DEVICES: Final = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
LIBRARY: Final = "/usr/lib64/libnvidia-ml.so.580.95.05"
SPECIFICATION: Final = f"{CDI}/management.nvidia.com-gpu.yaml"
_DRIVER = "/run/nvidia/driver"
"""Where the toolkit looks for it by default."""
_LIBRARIES = (LIBRARY, "/usr/lib64/libcuda.so.580.95.05")
"""The second says the driver's version."""
_TOOLS = "/run/nvidia/tools"
_MADE = f"""
set -e
mkdir -p {_DRIVER}/dev {_DRIVER}/usr/lib64 {_TOOLS}/usr/bin {CDI}
for file in {" ".join(DEVICES)}; do
  touch {_DRIVER}$file
  mount --bind /dev/null {_DRIVER}$file
done
for library in {" ".join(_LIBRARIES)}; do touch {_DRIVER}$library; done
cp /bin/true {_TOOLS}/usr/bin/nvidia-cdi-hook
"""
"""The specification names the hook, which would tell a container's linker of the libraries."""
_REMOVED = f"""
for file in {" ".join(DEVICES)}; do umount {_DRIVER}$file; done
rm -rf /run/nvidia {SPECIFICATION}
"""


@contextmanager
def made_up_driver(capsule: Capsule) -> Iterator[None]:
    """The node has it, and at the end neither driver nor specification."""
    capsule.run("sh", "-c", _MADE)
    try:
        yield
    finally:
        capsule.run("sh", "-c", _REMOVED)


class NriPlugin(Program):
    """`variables`: those that the operator's value `toolkit.env` adds."""

    def __init__(self, site: Site, variables: Mapping[str, str]) -> None:
        super().__init__(site, "nri-plugin")
        self._variables = variables

    def arguments(self) -> Sequence[str]:
        """The other programs of the toolkit, which it would install, are not there."""
        return (str(self.site.programs["nvidia-ctk-installer"]), "--ignore-errors")

    def environment(self) -> dict[str, str]:
        """As in the operator's DaemonSet; a device in /dev is not for it to make."""
        return {
            "ENABLE_NRI_PLUGIN": "true",
            "NRI_SOCKET": "/var/run/nri/nri.sock",
            "NRI_NAMESPACE": "gpu-operator",
            "CDI_ENABLED": "true",
            "CDI_OUTPUT_DIR": CDI,
            "CREATE_DEVICE_NODES": "none",
            "ROOT": "/run/nvidia/installed",
            "TOOLKIT_SOURCE_ROOT": _TOOLS,
            "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
            "RUNTIME": "containerd",
            **self._variables,
        }

    def is_ready(self) -> bool:
        """It says so once containerd has taken it."""
        return "Waiting for signal" in self.log.read_text()
