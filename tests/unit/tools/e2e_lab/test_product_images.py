import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab.containers import Surroundings, UnpackedImage, runtime_specification, unpack
from tests.e2e.lab.debian_base import BaseImageError, mirror, sources_list
from tests.e2e.lab.image_builder import Build, ImageBuildError, build_command
from tests.e2e.lab.package_index import index_variables
from tests.e2e.lab.product_images import (
    Facts,
    ProductImage,
    architecture_of,
    elf_machines,
    facts,
    layer_digests,
    layer_sizes,
    old_builds,
    source_date_epoch,
    sources,
)


def test_the_base_gets_this_machines_archives_of_its_release_only() -> None:
    found = sources_list(
        [
            "http://mirror.test/debian-security/ bookworm-security main",
            "http://mirror.test/debian/ bookworm main",
            "http://mirror.test/debian/ bookworm main",
            "http://mirror.test/debian/ bookworm contrib",
            "http://mirror.test/debian/ trixie main",
        ]
    )
    assert [x.partition("] ")[2] for x in found.splitlines()] == [
        "http://mirror.test/debian-security/ bookworm-security main",
        "http://mirror.test/debian/ bookworm main",
    ]
    assert all("signed-by=" in x for x in found.splitlines())
    assert mirror(found) == "http://mirror.test/debian/"


def test_without_the_release_it_says_what_to_do() -> None:
    with pytest.raises(BaseImageError, match="apt-get update"):
        sources_list(["http://mirror.test/debian-security/ bookworm-security main"])


def test_the_package_index_is_pips_own_and_the_environment_wins() -> None:
    lines = [
        ":env:.index-url='https://env.test/simple'",
        "global.index-url='https://file.test/simple'",
        "global.cert='/etc/ca.pem'",
        "global.timeout='60'",
    ]
    assert index_variables(lines) == {
        "PIP_INDEX_URL": "https://env.test/simple",
        "PIP_CERT": "/etc/ca.pem",
    }
    assert index_variables([]) == {}


def test_a_build_pulls_nothing_and_needs_no_daemon() -> None:
    build = Build("Dockerfile.x", Path("/src"), "x:1", {"A": "b"}, {Path("/ca.pem"): "/run/ca"}, 7)
    command = build_command(build)
    assert command[0] == "build"
    assert command[-1] == "."
    assert {
        "--isolation=chroot",
        "--pull-never",
        "--layers",
        "--timestamp=7",
        "--build-arg=A=b",
        "--volume=/ca.pem:/run/ca:ro",
        "--file=Dockerfile.x",
        "--tag=x:1",
    } <= set(command)


def test_what_is_not_sent_to_the_builder_may_be_listed_elsewhere() -> None:
    assert not [x for x in build_command(Build("D", Path("/src"), "x:1")) if "ignore" in x]
    build = Build("D", Path("/src"), "x:1", ignored="D.dockerignore")
    assert "--ignorefile=D.dockerignore" in build_command(build)


def test_a_build_says_what_it_is_for() -> None:
    assert not [x for x in build_command(Build("D", Path("/src"), "x:1")) if "platform" in x]
    build = Build("D", Path("/src"), "x:1", architecture="arm64")
    assert "--platform=linux/arm64" in build_command(build)


def tree(root: Path) -> Path:
    for name in ("agent", "controller", "gpuwarden", "requirements", "sandbox"):
        (root / name).mkdir(parents=True)
        (root / name / "a.py").write_text(name)
    for name in ("LICENSE", ".dockerignore", "Dockerfile.agent", "Dockerfile.controller"):
        (root / name).write_text(name)
    return root


def test_an_image_is_named_after_everything_that_goes_into_it(tmp_path: Path) -> None:
    root = tree(tmp_path)
    before = sources(root)
    assert {name for name, _ in before} == {
        "agent/a.py",
        "controller/a.py",
        "gpuwarden/a.py",
        "requirements/a.py",
        "LICENSE",
        ".dockerignore",
        "Dockerfile.agent",
        "Dockerfile.controller",
    }
    (root / "agent/__pycache__").mkdir()
    (root / "agent/__pycache__/a.pyc").write_text("compiled")
    (root / "sandbox/a.py").write_text("changed")
    assert sources(root) == before
    (root / "gpuwarden/a.py").write_text("changed")
    assert sources(root) != before


def test_old_builds_are_those_before_the_newest(tmp_path: Path) -> None:
    for age, name in enumerate(("images-c", "images-a", "images-b", "kubernetes-x")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (100 - age, 100 - age))
    assert [x.name for x in old_builds(tmp_path, 2)] == ["images-b"]
    assert old_builds(tmp_path, 3) == []


AARCH64 = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + bytes(44)
X86 = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + bytes(44)


def docker_archive(path: Path) -> Path:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        for name, content in (("bin/program", AARCH64), ("bin/script", b"#!"), ("bin/old", X86)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("bin/link")
        link.type, link.linkname = tarfile.SYMTYPE, "program"
        files.addfile(link)
    config = {
        "architecture": "arm64",
        "config": {"Entrypoint": ["/bin/program"], "Env": ["A=b=c"], "User": "7:8"},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:77"]},
    }
    contents = {
        "layer.tar": layer.getvalue(),
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]).encode(),
    }
    with tarfile.open(path, "w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_an_archive_is_unpacked_with_what_it_says(tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "a.tar")
    image = unpack(archive, tmp_path / "root")
    assert (image.root / "bin/program").read_bytes() == AARCH64
    assert (image.entrypoint, image.environment, image.user) == (
        ("/bin/program",),
        {"A": "b=c"},
        "7:8",
    )
    (size,) = layer_sizes(archive)
    assert size > 3
    assert list(layer_digests(archive)) == ["sha256:77"]
    assert ProductImage("x:1", archive).bill == tmp_path / "a.spdx.json"


def test_an_archive_shows_what_machine_it_is_for(tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "a.tar")
    assert architecture_of(archive) == "arm64"
    assert elf_machines(archive) == {183: ["bin/program"], 62: ["bin/old"]}


def test_the_archive_of_a_moment_is_named_whole_or_not_at_all() -> None:
    named = {"DEBIAN": "http://a.test/debian", "DEBIAN_SECURITY": "http://a.test/security"}
    assert facts({}) == Facts("unknown", 0, {})
    assert facts({**named, "REVISION": "r", "SOURCE_DATE_EPOCH": "7", "A": "b"}) == Facts(
        "r", 7, named
    )
    for name, value in named.items():
        with pytest.raises(
            ImageBuildError, match=f"only {name} is set: DEBIAN and DEBIAN_SECURITY"
        ):
            facts({name: value})


def test_a_locked_build_is_another_image() -> None:
    assert facts({"DEBIAN_LOCKED": "1"}).debian == {"DEBIAN_LOCKED": "1"}
    assert facts({"DEBIAN_LOCKED": ""}).debian == {}


def test_times_in_an_image_are_zero_unless_somebody_says() -> None:
    assert source_date_epoch({}) == 0
    assert source_date_epoch({"SOURCE_DATE_EPOCH": ""}) == 0
    assert source_date_epoch({"SOURCE_DATE_EPOCH": "1764400000"}) == 1764400000
    with pytest.raises(ImageBuildError, match=r"SOURCE_DATE_EPOCH='yesterday': expected seconds"):
        source_date_epoch({"SOURCE_DATE_EPOCH": "yesterday"})


def specification(**context: Any) -> Any:
    pod = {
        "securityContext": {"fsGroup": 9},
        "containers": [
            {
                "args": ["--x"],
                "env": [
                    {"name": "A", "value": "mine"},
                    {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "volumeMounts": [
                    {"name": "c", "mountPath": "/c", "readOnly": True},
                    {"name": "d", "mountPath": "/d"},
                ],
                "securityContext": {
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    **context,
                },
            }
        ],
    }
    image = UnpackedImage(Path("/root"), ("/p",), {"A": "image's", "B": "b"}, "7:8")
    given = Surroundings({"c": Path("/1"), "d": Path("/2")}, {"spec.nodeName": "n"})
    return runtime_specification(image, pod, given, "name")


def test_a_pod_is_run_as_its_manifest_says() -> None:
    found = specification()
    process = found["process"]
    assert process["args"] == ["/p", "--x"]
    assert process["env"] == ["A=mine", "B=b", "N=n"]
    assert process["user"] == {"uid": 7, "gid": 8, "additionalGids": [9]}
    assert set(map(tuple, process["capabilities"].values())) == {()}
    assert process["noNewPrivileges"] is True
    assert found["root"] == {"path": "/root", "readonly": True}
    access = {x["destination"]: x["options"][-1] for x in found["mounts"]}
    assert (access["/c"], access["/d"]) == ("ro", "rw")
    assert {"type": "pid"} in found["linux"]["namespaces"]


def test_what_a_manifest_gives_is_given() -> None:
    found = specification(
        runAsUser=0,
        readOnlyRootFilesystem=False,
        capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    )
    assert found["process"]["user"]["uid"] == 0
    assert found["root"]["readonly"] is False
    assert found["process"]["capabilities"]["effective"] == ["CAP_SYS_ADMIN"]
