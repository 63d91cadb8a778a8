"""The architectures that images are built for, as Debian and image indexes call them.

A build runs programs of this machine's architecture alone. Whoever runs an image for another
one has the kernel start its programs with qemu.
"""

import os

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""What the kernel, wheels and qemu call them."""


class ArchitectureError(ValueError):
    """No image is built for it."""


def this_machines() -> str:
    """The architecture of this machine; ArchitectureError where there are no images for it."""
    machine = os.uname().machine
    for architecture, name in MACHINES.items():
        if name == machine:
            return architecture
    raise ArchitectureError(f"this machine is {machine}: images are for {' and '.join(MACHINES)}")
