"""The images: what is in them, and both processes out of them as the manifests want them.

Needs no cluster: runc, the pods' own security context, a Workload API of the sandbox, NVML's
stand-in where the NVIDIA runtime would mount the real library, a stand-in for the API server.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from gpuwarden import __version__
from sandbox.nvml.build import LIBRARY, build
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.architecture.test_names import ROOT
from tests.architecture.test_requirement_sets import modules_of
from tests.architecture.test_unused_files import imports_of
from tests.builders.kube_access import service_account
from tests.deploy.manifests import BASE, Object, objects, one, pod_of
from tests.deploy.wheels import locked
from tests.e2e.lab.bill_of_materials import write_bill
from tests.e2e.lab.build import built
from tests.e2e.lab.containers import (
    Container,
    ContainerError,
    Surroundings,
    UnpackedImage,
    unpack,
)
from tests.e2e.lab.debian_base import CODENAME, machine_sources, mirror
from tests.e2e.lab.image_registry import image_registry
from tests.e2e.lab.machine import missing
from tests.e2e.lab.product_images import (
    NEEDS,
    PARTS,
    layer_digests,
    layer_sizes,
    product_images,
    pushed,
)
from tests.e2e.lab.upstreams import upstream
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually

MIB = 1 << 20
LIMITS = {"agent": 110 * MIB, "controller": 200 * MIB}
"""Bytes of all layers, unpacked."""
IMPORT = """
import importlib, sys
for name in sys.argv[1].split(","):
    importlib.import_module(name)
"""
pytestmark = pytest.mark.timeout(1800)  # a first build, on a busy machine
TD = "example.org"
NODE = "node-1"
SITE = "usr/local/lib/python3.11/dist-packages"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
TOOLS = {"sh", "bash", "dash", "busybox", "env", "apt", "apt-get", "dpkg", "pip", "pip3", "gcc"}
UNLOADABLE = {"_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "nis", "readline"}
"""Of the standard library: what they need is not in the image, and nobody imports them."""
LOAD = """
import ctypes, json, pathlib, sys
failed = {}
for folder in ("/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3.11/lib-dynload"):
    for path in pathlib.Path(folder).rglob("*.so*"):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            failed[path.name.partition(".")[0]] = str(error)
print(json.dumps(failed))
"""
FAST = {
    "GPUWARDEN_ATTESTATION_INTERVAL": "1s",
    "GPUWARDEN_ATTESTATION_CHALLENGE_TTL": "2s",
    "GPUWARDEN_ATTESTATION_LEASE": "20s",
}
MANIFESTS = objects()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, UnpackedImage]]:
    if reasons := missing((*NEEDS, *upstream("runc").needs, "cgroups")):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    folder = tmp_path_factory.mktemp("images")
    yield {part: unpack(image.archive, folder / part) for part, image in product_images().items()}
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def runc(images: dict[str, UnpackedImage]) -> Path:
    del images  # says what is missing
    return built(["runc"])["runc"]


@pytest.mark.parametrize("part", PARTS)
def test_no_shell_no_package_manager_and_nothing_of_the_other_side(
    images: dict[str, UnpackedImage], part: str
) -> None:
    root = images[part].root
    names = {path.name for folder in ("usr/bin", "usr/sbin") for path in (root / folder).iterdir()}
    assert "python3" in names
    assert not names & TOOLS
    ours = {"agent", "controller", "gpuwarden", "sandbox", "tests"}
    found = {path.name for path in (root / SITE).iterdir()}
    assert found & ours == {part, "gpuwarden"}
    assert not {"pip", "setuptools", "pytest"} & found
    set_uid = [x for x in root.rglob("*") if x.is_file() and x.lstat().st_mode & 0o6000]
    assert set_uid == []


@pytest.mark.parametrize("part", PARTS)
def test_everything_is_compiled_already(images: dict[str, UnpackedImage], part: str) -> None:
    """Its root is read-only: what is not compiled now is compiled at every start."""
    site = images[part].root / SITE
    sources = [x for name in (part, "gpuwarden") for x in (site / name).rglob("*.py")]
    compiled = [x.parent / "__pycache__" / f"{x.stem}.cpython-311.pyc" for x in sources]
    assert sources
    assert [str(x) for x in compiled if not x.exists()] == []
    flags = {int.from_bytes(x.read_bytes()[4:8], "little") for x in compiled}
    assert flags == {0b01}, "by hash and not checked: times in the image are all zero"


@pytest.mark.parametrize("part", PARTS)
def test_an_image_is_small(images: dict[str, UnpackedImage], part: str) -> None:
    del images  # says what is missing
    sizes = layer_sizes(product_images()[part].archive)
    assert 50 * MIB < sum(sizes) <= LIMITS[part], sizes


@pytest.mark.parametrize("part", PARTS)
def test_packages_are_the_locked_ones_and_come_from_wheels(
    images: dict[str, UnpackedImage], part: str
) -> None:
    found = list(distributions(path=[str(images[part].root / SITE)]))
    names = {(canonicalize_name(x.name), x.version) for x in found}
    assert names == locked(part, os.uname().machine).keys()
    assert [x.name for x in found if x.read_text("WHEEL") is None] == []


@pytest.mark.parametrize("part", PARTS)
def test_the_bill_of_materials_names_all_that_is_in_it(
    images: dict[str, UnpackedImage], part: str, tmp_path: Path
) -> None:
    del images
    if reasons := missing(["syft"]):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    image = product_images()[part]
    bill = tmp_path / "image.spdx.json"
    write_bill(image.archive, image.name, bill, 0)
    validator = Path(sys.executable).with_name("pyspdxtools")
    checked = subprocess.run(
        [validator, "--infile", bill], capture_output=True, text=True, timeout=300, check=False
    )
    assert checked.returncode == 0, checked.stderr
    document = json.loads(bill.read_text())
    assert document["spdxVersion"] == "SPDX-2.3"
    packages = {x["SPDXID"]: x for x in document["packages"]}
    (described,) = [
        packages[x["relatedSpdxElement"]]
        for x in document["relationships"]
        if (x["spdxElementId"], x["relationshipType"]) == ("SPDXRef-DOCUMENT", "DESCRIBES")
    ]
    assert (described["name"], described["versionInfo"]) == (f"gpuwarden-{part}", __version__)
    places = re.findall(
        r"pkg:(deb/debian|pypi)/([^@?]+)@([^?\s]+)",
        " ".join(
            reference["referenceLocator"]
            for package in packages.values()
            for reference in package.get("externalRefs", ())
        ).replace("%2B", "+"),
    )
    python = {
        (canonicalize_name(name), version) for kind, name, version in places if kind == "pypi"
    }
    assert python == locked(part, os.uname().machine).keys()
    assert {name for kind, name, _ in places if kind == "deb/debian"} == locked_debian().keys()


def locked_debian() -> dict[str, str]:
    lines = (ROOT / "requirements/debian.list").read_text().splitlines()
    return dict(line.split("=") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("part", PARTS)
def test_no_debian_package_is_older_than_the_listed_one(
    images: dict[str, UnpackedImage], part: str
) -> None:
    """A build that is not locked has what the archive had that day: the listed one, or newer."""
    folder = images[part].root / "var/lib/dpkg/status.d"
    found = {
        path.name: line.partition(": ")[2]
        for path in folder.iterdir()
        for line in path.read_text().splitlines()
        if line.startswith("Version: ")
    }
    assert found.keys() == locked_debian().keys()
    older = [
        name
        for name, version in locked_debian().items()
        if subprocess.run(
            ["dpkg", "--compare-versions", found[name], "lt", version],  # noqa: S607 - Debian's
            check=False,
        ).returncode
        == 0
    ]
    assert older == []


def test_an_image_is_pushed_to_a_registry(
    images: dict[str, UnpackedImage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del images
    if reasons := missing(["docker-registry"]):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    image = product_images()["agent"]
    with image_registry(tmp_path) as registry:
        monkeypatch.setenv("SSL_CERT_FILE", str(registry.ca))
        (name,) = pushed([image], f"{registry.host}/team")
        repository, _, digest = name.partition("@")
        assert repository == f"{registry.host}/team/gpuwarden-agent:{__version__}"
        manifest = registry.get(f"team/gpuwarden-agent/manifests/{digest}")
        assert registry.get(f"team/gpuwarden-agent/manifests/{__version__}") == manifest
        config = registry.get(f"team/gpuwarden-agent/blobs/{manifest['config']['digest']}")
    assert config["rootfs"]["diff_ids"] == list(layer_digests(image.archive))


@pytest.mark.long
def test_built_again_from_nothing_it_has_the_same_layers(
    images: dict[str, UnpackedImage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another base, nothing cached; the same archives of Debian, named this time."""
    del images
    archives = machine_sources()
    monkeypatch.setenv("DEBIAN", mirror(archives, CODENAME))
    monkeypatch.setenv("DEBIAN_SECURITY", mirror(archives, f"{CODENAME}-security"))
    first, again = product_images(), product_images(tmp_path)
    for part in PARTS:
        if layer_digests(first[part].archive) != layer_digests(again[part].archive):
            differ = set(entries(first[part].archive)) ^ set(entries(again[part].archive))
            pytest.fail(f"{part}: {sorted(differ)[:40]}")
        bills = []
        for number, image in enumerate((first[part], again[part])):
            write_bill(image.archive, image.name, tmp_path / f"{part}-{number}.spdx.json", 0)
            bills.append((tmp_path / f"{part}-{number}.spdx.json").read_text())
        assert bills[0] == bills[1]


def entries(archive: Path) -> Iterator[tuple[str, ...]]:
    """Everything that two equal layers have alike: one line for each file of an image."""
    with tarfile.open(archive) as opened:
        manifest = opened.extractfile("manifest.json")
        assert manifest is not None
        for name in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=opened.extractfile(name)) as layer:
                for entry in layer:
                    file = layer.extractfile(entry) if entry.isreg() else None
                    content = hashlib.sha256(file.read() if file else b"").hexdigest()
                    facts = (entry.mode, entry.uid, entry.gid, entry.mtime, entry.linkname)
                    yield (entry.name, *map(str, facts), content)


@dataclass(frozen=True)
class Pods:
    """Both workloads' pods on this machine."""

    images: dict[str, UnpackedImage]
    runc: Path
    folder: Path
    api: FakeApiServer
    workload_api: InsecureWorkloadApi
    patience: int = 1

    def controller(self, **variables: str) -> Container:
        policy = self.folder / "policy"
        policy.mkdir()
        text = (BASE / "config/policy.yaml").read_text()
        (policy / "policy.yaml").write_text(text.replace("minLevel: L1", "minLevel: L0"))
        account = service_account(self.folder / "account", self.api)
        return self._container(
            "controller",
            one(MANIFESTS, "StatefulSet", "gpuwarden-controller"),
            volumes={
                "policy": policy,
                "local": self._written("local"),
                "data": self._written("data"),
            },
            mounts={"/var/run/secrets/kubernetes.io/serviceaccount": account},
            variables={
                **FAST,
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(self.api.port),
                "GPUWARDEN_SPIRE_SERVER": "off",
                "GPUWARDEN_LISTEN_AGENTS": "127.0.0.1:0",
                "GPUWARDEN_LISTEN_EXTENDER": "127.0.0.1:0",
                "GPUWARDEN_LISTEN_OPS": "127.0.0.1:0",
                **variables,
            },
        )

    def agent_with_gpus(self, controller: str) -> Container:
        """With the stand-in where the NVIDIA runtime mounts the real library."""
        scenario = self.folder / "scenario"
        write(scenario, Scenario(cuda=12080, gpus=tuple(h100_sxm(n) for n in range(2))))
        library = {"/run/scenario": scenario, f"{LIBRARIES}/{LIBRARY}": build() / LIBRARY}
        return self.agent(controller, library, **{VARIABLE: "/run/scenario"})

    def agent(
        self, controller: str, mounts: dict[str, Path] | None = None, **variables: str
    ) -> Container:
        empty = self.folder / "pod-resources"
        empty.mkdir()
        return self._container(
            "agent",
            one(MANIFESTS, "DaemonSet", "gpuwarden-agent"),
            volumes={"state": self._written("state"), "pod-resources": empty},
            mounts=mounts or {},
            variables={
                "GPUWARDEN_AGENT_CONTROLLERS": controller,
                "GPUWARDEN_LISTEN_OPS": "127.0.0.1:0",
                **variables,
            },
        )

    def _container(
        self,
        part: str,
        workload: Object,
        *,
        volumes: dict[str, Path],
        mounts: dict[str, Path],
        variables: dict[str, str],
    ) -> Container:
        name = f"agent/{NODE}" if part == "agent" else part
        socket = self.workload_api.add(part, f"spiffe://{TD}/gpuwarden/{name}")
        path = Path(socket.removeprefix("unix://"))
        path.chmod(0o777)  # as SPIRE's is
        sockets = self.folder / f"sockets-{part}"
        sockets.mkdir()
        os.link(path, sockets / "spire-agent.sock")
        surroundings = Surroundings(
            volumes={**volumes, "config": BASE / "config", "spire": sockets},
            fields={
                "spec.nodeName": NODE,
                "metadata.name": "gpuwarden-controller-0",
                "metadata.namespace": "gpuwarden-system",
            },
            extra_mounts=mounts,
            extra_environment=variables,
        )
        image = self.images[part]
        return Container(
            self.runc,
            self.folder / part,
            part,
            image=image,
            pod=pod_of(workload),
            surroundings=surroundings,
            patience=self.patience,
        )

    def _written(self, name: str) -> Path:
        """A volume as kubelet prepares it for the controller's group."""
        path = self.folder / name
        path.mkdir()
        if name != "state":
            os.chown(path, 0, 65532)
            path.chmod(0o2770)
        return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("api", "spiffe"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
async def pods(images: dict[str, UnpackedImage], runc: Path, folder: Path) -> AsyncIterator[Pods]:
    api = FakeApiServer(folder / "api")
    await api.start()
    api.create("nodes", {"metadata": {"name": NODE}})
    with InsecureWorkloadApi(folder / "spiffe", TD) as workload_api:
        yield Pods(images, runc, folder, api, workload_api)
    await api.stop()


async def test_an_agent_of_the_daemonset_attests_to_a_controller_of_the_statefulset(
    pods: Pods,
) -> None:
    with pods.controller() as controller:
        opened = await asyncio.to_thread(controller.event, event="listener.open", listener="agents")
        with pods.agent_with_gpus(opened["address"]) as agent:
            ready = await eventually(lambda: verified(controller), "the node is verified")
            assert (ready["name"], ready["level"]) == (NODE, "L0")
            checks = (
                has_no_power,
                refuses_to_be_written,
                has_what_its_libraries_need,
                shows_its_settings,
                imports_all_that_its_sources_name,
            )
            for check in checks:
                await asyncio.to_thread(check, controller, agent)
            assert await asyncio.to_thread(agent.stop) == 0
        assert await asyncio.to_thread(controller.stop) == 0


async def verified(controller: Container) -> dict[str, str] | None:
    """The only node as the image's own command line sees it."""
    text = await asyncio.to_thread(controller.exec, "gpuwarden", "nodes", "--output", "json")
    for node in json.loads(text)["nodes"]:
        if node["state"] == "eligible":
            found: dict[str, str] = node
            return found
    return None


def has_no_power(controller: Container, agent: Container) -> None:
    for container, uid in ((controller, "65532"), (agent, "0")):
        status = container.status()
        assert set(status["Uid"].split()) == {uid}
        assert {status[x].strip("0") for x in ("CapInh", "CapPrm", "CapEff", "CapBnd")} == {""}
        assert status["NoNewPrivs"] == "1"


def refuses_to_be_written(controller: Container, agent: Container) -> None:
    for container in (controller, agent):
        for folder in ("/", "/tmp", "/usr/local/lib/python3.11/dist-packages"):  # noqa: S108 - in the container
            with pytest.raises(ContainerError, match=r"Read-only file system|Permission denied"):
                container.exec("/usr/bin/python3", "-I", "-c", f"open('{folder}/x', 'w')")


def has_what_its_libraries_need(controller: Container, agent: Container) -> None:
    for container in (controller, agent):
        failed = json.loads(container.exec("/usr/bin/python3", "-I", "-c", LOAD))
        assert failed.keys() <= UNLOADABLE, failed


def imports_all_that_its_sources_name(controller: Container, agent: Container) -> None:
    """What requirements/unused.list leaves out is missed by nobody."""
    for container, part in ((controller, "controller"), (agent, "agent")):
        folders = ("controller", "gpuwarden") if part == "controller" else ("agent",)
        names = sorted({*modules_of(*folders), *imports_of(*folders)} - {"__future__"})
        container.exec("/usr/bin/python3", "-I", "-c", IMPORT, ",".join(names))


def shows_its_settings(controller: Container, agent: Container) -> None:
    file = "/etc/gpuwarden/config/controller.yaml"
    controller.exec("gpuwarden", "config", "validate", "--process", "controller", "-f", file)
    file = "/etc/gpuwarden/agent.yaml"
    run = ("/usr/bin/python3", "-I", "-m")
    assert "trustDomain" in agent.exec(*run, "agent", "--config", file, "--print-config")
    assert "usage" in controller.exec(*run, "controller", "--help").lower()
