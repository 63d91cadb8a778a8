import hashlib
import json
import tarfile
from pathlib import Path

from tests.e2e.lab.images import Image, write_archive


def archive(folder: Path, name: str) -> Path:
    program = folder / "program"
    program.write_bytes(b"\x7fELF")
    target = folder / name
    image = Image("lab/x:1", {"/x": program, "/bin/y": program}, ["/x"], ["A=b"])
    write_archive(image, target)
    return target


def test_an_archive_names_its_image_and_what_it_runs(tmp_path: Path) -> None:
    with tarfile.open(archive(tmp_path, "a.tar")) as found:
        manifest = json.load(found.extractfile("manifest.json"))  # type: ignore[arg-type] # is a file
        (entry,) = manifest
        config = found.extractfile(entry["Config"]).read()  # type: ignore[union-attr] # is a file
        layer = found.extractfile(entry["Layers"][0])
        assert layer is not None
        content = layer.read()
        layer.seek(0)
        with tarfile.open(fileobj=layer) as files:
            modes = {member.name: (member.mode, member.uid) for member in files}
    assert entry["RepoTags"] == ["lab/x:1"]
    assert entry["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    document = json.loads(config)
    assert document["config"] == {"Entrypoint": ["/x"], "Env": ["A=b"]}
    assert document["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    assert modes == {"x": (0o755, 0), "bin/y": (0o755, 0)}


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    first = archive(tmp_path, "a.tar").read_bytes()
    assert archive(tmp_path, "a.tar").read_bytes() == first


def test_no_layer_is_left_beside_the_archive(tmp_path: Path) -> None:
    archive(tmp_path, "a.tar")
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "program"}
