"""Images for another architecture than this machine's: what is in them, and that they run.

Needs no cluster. A build needs no emulation; to run, the kernel must start their programs with
qemu, which nothing here registers.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from gpuwarden import __version__
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.architecture.test_requirement_sets import modules_of
from tests.architecture.test_unused_files import imports_of
from tests.deploy.wheels import locked
from tests.e2e.lab.architecture import MACHINES, this_machines
from tests.e2e.lab.build import built
from tests.e2e.lab.containers import UnpackedImage, unpack
from tests.e2e.lab.image_registry import image_registry
from tests.e2e.lab.machine import missing
from tests.e2e.lab.product_images import (
    NEEDS,
    PARTS,
    ProductImage,
    architecture_of,
    elf_machines,
    evaluation_image,
    layer_digests,
    layer_sizes,
    product_images,
    pushed,
)
from tests.e2e.lab.upstreams import upstream
from tests.e2e.test_images import (
    IMPORT,
    LIMITS,
    LOAD,
    MIB,
    NODE,
    SITE,
    TD,
    UNLOADABLE,
    Pods,
    verified,
)
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually

pytestmark = pytest.mark.timeout(3600)  # a first build under emulation, on a busy machine
ELF = {"amd64": 62, "arm64": 183}
"""`e_machine`: EM_X86_64 and EM_AARCH64 of elf.h."""
EVALUATED = {
    "GPUWARDEN_EVALUATION_ENABLED": "true",
    "GPUWARDEN_ATTESTATION_INTERVAL": "15s",
    "GPUWARDEN_ATTESTATION_CHALLENGE_TTL": "60s",
    "GPUWARDEN_ATTESTATION_LEASE": "90s",
}
"""An emulated agent takes its time; its GPUs are made up."""
PATIENCE = 10
PYTHON = ("/usr/bin/python3", "-I", "-c")


@pytest.fixture(scope="module")
def own() -> dict[str, ProductImage]:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    return product_images()


@pytest.fixture(scope="module")
def other() -> str:
    """The architecture that this machine has to emulate."""
    (found,) = MACHINES.keys() - {this_machines()}
    return found


@pytest.fixture(scope="module")
def archives(other: str) -> dict[str, ProductImage]:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    return product_images(arch=other)


@pytest.fixture(scope="module")
def images(
    archives: dict[str, ProductImage], other: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, UnpackedImage]]:
    if reasons := missing([f"qemu-{MACHINES[other]}"]):
        pytest.skip(f"programs for {other} do not run: {'; '.join(reasons)}")
    folder = tmp_path_factory.mktemp("images")
    yield {part: unpack(image.archive, folder / part) for part, image in archives.items()}
    shutil.rmtree(folder)


@pytest.mark.parametrize("part", PARTS)
def test_an_image_holds_programs_of_this_machines_architecture_alone(
    own: dict[str, ProductImage], part: str
) -> None:
    assert architecture_of(own[part].archive) == this_machines()
    assert elf_machines(own[part].archive).keys() == {ELF[this_machines()]}


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_an_image_for_another_holds_its_programs_alone(
    archives: dict[str, ProductImage], other: str, part: str
) -> None:
    archive = archives[part].archive
    assert architecture_of(archive) == other
    assert elf_machines(archive).keys() == {ELF[other]}
    sizes = layer_sizes(archive)
    assert 50 * MIB < sum(sizes) <= LIMITS[part], sizes


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_its_packages_are_those_locked_for_it(
    images: dict[str, UnpackedImage], other: str, part: str
) -> None:
    found = list(distributions(path=[str(images[part].root / SITE)]))
    names = {(canonicalize_name(x.name), x.version) for x in found}
    assert names == locked(part, MACHINES[other]).keys()


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_it_runs_and_misses_no_library_and_no_module(
    images: dict[str, UnpackedImage], other: str, part: str
) -> None:
    image = images[part]
    assert ran(image, *PYTHON, "import os; print(os.uname().machine)") == f"{MACHINES[other]}\n"
    assert "usage" in ran(image, *image.entrypoint, "--help").lower()
    assert json.loads(ran(image, *PYTHON, LOAD)).keys() <= UNLOADABLE
    folders = ("controller", "gpuwarden") if part == "controller" else ("agent",)
    names = sorted({*modules_of(*folders), *imports_of(*folders)} - {"__future__"})
    ran(image, *PYTHON, IMPORT, ",".join(names))


@pytest.mark.long
def test_the_command_line_runs_in_it(images: dict[str, UnpackedImage]) -> None:
    assert __version__ in ran(images["controller"], "/usr/local/bin/gpuwarden", "--version")


@pytest.fixture
async def pods(images: dict[str, UnpackedImage], other: str, tmp_path: Path) -> AsyncIterator[Pods]:
    """The controller, and the evaluation's agent: it brings its library of its architecture."""
    if reasons := missing((*upstream("runc").needs, "cgroups")):
        pytest.skip(f"no containers: {'; '.join(reasons)}")
    for name in ("api", "spiffe"):
        (tmp_path / name).mkdir()
    archive = evaluation_image(arch=other).archive
    assert elf_machines(archive).keys() == {ELF[other]}
    both = {**images, "agent": unpack(archive, tmp_path / "evaluation")}
    api = FakeApiServer(tmp_path / "api")
    await api.start()
    api.create("nodes", {"metadata": {"name": NODE}})
    with InsecureWorkloadApi(tmp_path / "spiffe", TD) as workload_api:
        yield Pods(both, built(["runc"])["runc"], tmp_path, api, workload_api, PATIENCE)
    await api.stop()


@pytest.mark.long
async def test_an_agent_attests_to_a_controller(pods: Pods) -> None:
    with pods.controller(**EVALUATED) as controller:
        opened = await asyncio.to_thread(controller.event, event="listener.open", listener="agents")
        with pods.agent(opened["address"]) as agent:
            ready = await eventually(
                lambda: verified(controller), "the node is verified", within_s=900
            )
            assert (ready["name"], ready["level"]) == (NODE, "none")
            assert await asyncio.to_thread(agent.stop) == 0
        assert await asyncio.to_thread(controller.stop) == 0


@pytest.mark.long
def test_both_architectures_are_one_image_in_a_registry(
    own: dict[str, ProductImage],
    archives: dict[str, ProductImage],
    other: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reasons := missing(["docker-registry"]):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    both = {this_machines(): own["agent"], other: archives["agent"]}
    with image_registry(tmp_path) as registry:
        monkeypatch.setenv("SSL_CERT_FILE", str(registry.ca))
        (name,) = pushed(both.values(), f"{registry.host}/team")
        index = registry.get(f"team/gpuwarden-agent/manifests/{name.partition('@')[2]}")
        assert registry.get(f"team/gpuwarden-agent/manifests/{__version__}") == index
        found = {x["platform"]["architecture"]: x["digest"] for x in index["manifests"]}
        assert found.keys() == both.keys()
        for architecture, digest in found.items():
            manifest = registry.get(f"team/gpuwarden-agent/manifests/{digest}")
            config = registry.get(f"team/gpuwarden-agent/blobs/{manifest['config']['digest']}")
            layers = config["rootfs"]["diff_ids"]
            assert layers == list(layer_digests(both[architecture].archive))


def ran(image: UnpackedImage, *command: str) -> str:
    """What a program says in the image's own file system, as the image's user."""
    done = subprocess.run(
        ["/usr/sbin/chroot", f"--userspec={image.user}", image.root, *command],
        env=dict(image.environment),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
