"""Containers of a manifest without a cluster: runc on an unpacked image, in this machine's network.

What kubelet and containerd would take from the pod's specification is taken from it: user,
capabilities, read-only root, variables, arguments, mounts. Volumes are folders or files that
the caller names.
"""

import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.e2e.lab.waiting import until

Document = dict[str, Any]
_END_S = 15.0
_LOG_S = 60.0
_COMMAND_S = 60.0
_BOUND = ["rbind", "nosuid", "nodev"]


class ContainerError(RuntimeError):
    """runc refused, or a command in the container failed; carries what it said."""


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """An image's files, and what it says about how to run it."""

    root: Path
    entrypoint: tuple[str, ...]
    environment: Mapping[str, str]
    user: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node gives to a pod."""

    volumes: Mapping[str, Path]
    """By the volume's name in the manifest."""
    fields: Mapping[str, str]
    """What the downward API says, by the field's path."""
    extra_mounts: Mapping[str, Path] = field(default_factory=dict)
    """By the path in the container: what a runtime adds."""
    extra_environment: Mapping[str, str] = field(default_factory=dict)


_TRUSTED: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
"""Before 3.11.4 tarfile knows no filters, and trusts."""


def unpack(archive: Path, root: Path) -> UnpackedImage:
    """Unpack a docker archive whose layers take nothing away."""
    root.mkdir(parents=True)
    with tarfile.open(archive) as opened:
        manifest = json.loads(_content(opened, "manifest.json"))[0]
        for name in manifest["Layers"]:
            layer = opened.extractfile(name)
            assert layer is not None
            with tarfile.open(fileobj=layer) as files:
                files.extractall(root, **_TRUSTED)  # noqa: S202 - we built it
        config = json.loads(_content(opened, manifest["Config"]))["config"]
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    return UnpackedImage(root, tuple(config["Entrypoint"]), environment, config["User"])


class Container:
    """One container. A context manager: started, and gone at the end."""

    def __init__(
        self,
        runc: Path,
        folder: Path,
        name: str,
        *,
        image: UnpackedImage,
        pod: Document,
        surroundings: Surroundings,
        patience: int = 1,
    ) -> None:
        self.name = f"gpuwarden-{os.getpid()}-{name}"
        self.log = folder / "log"
        """Standard output and error."""
        self._patience = patience
        """How many times as long as on the machine itself everything may take."""
        self._runc = (str(runc), f"--root={folder / 'runc'}")
        self._folder = folder
        folder.mkdir(parents=True)
        specification = runtime_specification(image, pod, surroundings, self.name)
        (folder / "config.json").write_text(json.dumps(specification))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._runc, "run", f"--bundle={self._folder}", self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._ran("kill", self.name, "KILL")
            self._process.wait(_END_S * self._patience)
        self._ran("delete", "--force", self.name)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self._process is not None
        self._checked("kill", self.name, "TERM")
        return self._process.wait(_END_S * self._patience)

    def exec(self, *arguments: str) -> str:
        """Run a command in there, as the container's user; its standard output."""
        return self._checked("exec", self.name, *arguments)

    def status(self) -> Mapping[str, str]:
        """/proc/PID/status of its first process."""
        state = json.loads(self._checked("state", self.name))
        lines = Path(f"/proc/{state['pid']}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (x.partition(":") for x in lines)}

    def event(self, **wanted: str) -> Document:
        """The first JSON line of its log with these values."""
        limit_s = _LOG_S * self._patience
        return until(f"{self.name} logs {wanted}", lambda: self._find(wanted), timeout_s=limit_s)

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def _find(self, wanted: Mapping[str, str]) -> Document | None:
        assert self._process is not None
        for line in self.text().splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and wanted.items() <= found.items():
                return found
        if self._process.poll() is not None:
            raise ContainerError(f"{self.name} ended before it logged {wanted}: {self.text()}")
        return None

    def _checked(self, *arguments: str) -> str:
        done = self._ran(*arguments)
        if done.returncode != 0:
            raise ContainerError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _ran(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._runc, *arguments],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S * self._patience,
            check=False,
        )


def runtime_specification(
    image: UnpackedImage, pod: Document, surroundings: Surroundings, name: str
) -> Document:
    """The OCI runtime configuration of a pod's only container."""
    (container,) = pod["containers"]
    spaces = ["mount", "ipc", "uts", *([] if pod.get("hostPID") else ["pid"])]
    return {
        "ociVersion": "1.0.2",
        "hostname": name,
        "root": {"path": str(image.root), "readonly": _context(pod)["readOnlyRootFilesystem"]},
        "process": {
            "cwd": "/",
            "args": [*image.entrypoint, *container.get("args", ())],
            "env": _environment(image, container, surroundings),
            "user": _user(image, pod),
            "capabilities": dict.fromkeys(
                ("bounding", "effective", "permitted"), _capabilities(_context(pod))
            ),
            "noNewPrivileges": not _context(pod)["allowPrivilegeEscalation"],
        },
        "mounts": [*_KERNELS, *_mounts(container, surroundings)],
        "linux": {
            "namespaces": [{"type": space} for space in spaces],
            "cgroupsPath": f"/{name}",
        },
    }


def _context(pod: Document) -> Document:
    (container,) = pod["containers"]
    return {**pod["securityContext"], **container["securityContext"]}


def _capabilities(context: Document) -> list[str]:
    assert context["capabilities"]["drop"] == ["ALL"], "else the runtime's own list would count"
    return [f"CAP_{name}" for name in context["capabilities"].get("add", ())]


def _user(image: UnpackedImage, pod: Document) -> Document:
    uid, _, gid = image.user.partition(":")
    context = _context(pod)
    groups = [context["fsGroup"]] if "fsGroup" in context else []
    return {
        "uid": context.get("runAsUser", int(uid)),
        "gid": context.get("runAsGroup", int(gid)),
        "additionalGids": groups,
    }


def _environment(
    image: UnpackedImage, container: Document, surroundings: Surroundings
) -> Sequence[str]:
    known = dict(image.environment)
    for entry in container.get("env", ()):
        known[entry["name"]] = (
            entry["value"]
            if "value" in entry
            else surroundings.fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        )
    known.update(surroundings.extra_environment)
    return [f"{name}={value}" for name, value in known.items()]


def _mounts(container: Document, surroundings: Surroundings) -> list[Document]:
    mounts = [
        _bind(
            entry["mountPath"],
            surroundings.volumes[entry["name"]],
            "ro" if entry.get("readOnly") else "rw",
        )
        for entry in container["volumeMounts"]
    ]
    return mounts + [_bind(at, path, "ro") for at, path in surroundings.extra_mounts.items()]


def _bind(destination: str, source: Path, access: str) -> Document:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": [*_BOUND, access],
    }


_KERNELS = (
    {
        "destination": "/proc",
        "type": "proc",
        "source": "proc",
        "options": ["nosuid", "noexec", "nodev"],
    },
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
    {
        "destination": "/dev/shm",  # noqa: S108 - in the container
        "type": "tmpfs",
        "source": "shm",
        "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
    },
    {"destination": "/sys", "type": "bind", "source": "/sys", "options": [*_BOUND, "ro"]},
)


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    assert found is not None
    return found.read()
