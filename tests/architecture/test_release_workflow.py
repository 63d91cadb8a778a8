"""The release workflow runs nothing that is not pinned, and signs what the image policy demands."""

import hashlib
import os
import re
import subprocess
import tarfile
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.test_names import ROOT
from tests.hang import HANG_S

FILE = ROOT / ".github/workflows/release.yml"
TEXT = FILE.read_text()
WORKFLOW = yaml.safe_load(TEXT)
POLICY = yaml.safe_load((ROOT / "deploy/image-policy/clusterimagepolicy.yaml").read_text())["spec"]
SIGNED = "https://github.com/EXAMPLE/gpuwarden/.github/workflows/release.yml@refs/tags/v1.20.3"


def steps(job: str) -> dict[str, Any]:
    return {step["name"]: step for step in WORKFLOW["jobs"][job]["steps"]}


def test_there_is_one_workflow() -> None:
    """`make lint` looks at it with zizmor, and with the schema."""
    assert list(FILE.parent.iterdir()) == [FILE]


def test_every_action_is_pinned_by_its_whole_commit_and_says_its_version() -> None:
    uses = re.findall(r"^ *uses: (.*)$", TEXT, re.MULTILINE)
    assert len(uses) > 5
    pinned = r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"
    assert [x for x in uses if not re.fullmatch(pinned, x)] == []
    versions: dict[str, set[str]] = {}
    for use in uses:
        versions.setdefault(use.partition("@")[0], set()).add(use)
    assert [x for x in versions.values() if len(x) > 1] == []


def test_a_job_may_write_only_what_it_makes() -> None:
    assert WORKFLOW["permissions"] == {}
    found = {name: job["permissions"] for name, job in WORKFLOW["jobs"].items()}
    signs = {"id-token": "write", "attestations": "write"}
    assert found == {
        "check": {"contents": "read"},
        "image": {"contents": "read", "packages": "write", **signs},
        "release": {"contents": "write", "packages": "write", **signs},
    }


def test_nothing_is_built_before_the_tests() -> None:
    jobs = WORKFLOW["jobs"]
    assert (jobs["image"]["needs"], jobs["release"]["needs"]) == ("check", "image")


def test_images_are_for_both_machines_from_the_archive_of_a_moment() -> None:
    given = steps("image")["Build and push"]["with"]
    assert given["platforms"] == "linux/amd64,linux/arm64"
    assert given["file"] == "Dockerfile.${{ matrix.part }}"
    arguments = {line.partition("=")[0] for line in given["build-args"].splitlines()}
    assert arguments == {"VERSION", "REVISION", "DEBIAN", "DEBIAN_SECURITY", "DEBIAN_LOCKED"}
    assert "rewrite-timestamp=true" in given["outputs"]
    for part in WORKFLOW["jobs"]["image"]["strategy"]["matrix"]["part"]:
        text = (ROOT / f"Dockerfile.{part}").read_text()
        assert arguments <= set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))


def test_the_evaluation_s_image_stands_on_the_agent_that_was_built() -> None:
    found = steps("image")
    given = found["Build and push the evaluation's"]["with"]
    assert given["file"] == "Dockerfile.evaluation"
    for same in ("context", "platforms", "outputs", "provenance"):
        assert given[same] == found["Build and push"]["with"][same]
    agent = "${{ steps.facts.outputs.image }}@${{ steps.build.outputs.digest }}"
    assert given["build-args"].strip() == f"AGENT={agent}"
    assert "\nARG AGENT=" in (ROOT / "Dockerfile.evaluation").read_text()
    assert found["Provenance of the evaluation's"]["with"]["push-to-registry"] is True
    for name in ("Build and push the evaluation's", "Provenance of the evaluation's"):
        assert found[name]["if"] == "matrix.part == 'agent'"
    assert "$IMAGE-evaluation@$EVALUATION" in found["Bills of materials and signature"]["run"]


def test_chart_and_wheel_have_the_version_of_the_tag() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/gpuwarden/Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    found = steps("release")
    assert found["Chart"]["run"] == "helm package deploy/helm/gpuwarden --destination dist"
    assert "dist/gpuwarden-${GITHUB_REF_NAME#v}.tgz" in found["Release"]["run"]
    assert found["Provenance"]["with"]["subject-path"] == "dist/*"
    assert found["Release"]["run"].endswith(" dist/*\n")


def test_krew_finds_the_archive_that_its_manifest_names(tmp_path: Path) -> None:
    """The workflow's own lines, run by a shell."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "LICENSE").symlink_to(ROOT / "LICENSE")
    forge = "https://forge.example"
    subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", steps("release")["Plugin for krew"]["run"]],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "GITHUB_REF_NAME": "v1.20.3",
            "GITHUB_SERVER_URL": forge,
            "GITHUB_REPOSITORY": "EXAMPLE/gpuwarden",
        },
        check=True,
        timeout=HANG_S,
    )
    made = sorted(x.name for x in (tmp_path / "dist").iterdir())
    assert made == ["gpuwarden.yaml", "kubectl-gpuwarden-1.20.3.tar.gz"]
    text = (tmp_path / "dist/gpuwarden.yaml").read_text()
    assert re.findall("VERSION|URL|SHA256", text) == []
    (platform,) = yaml.safe_load(text)["spec"]["platforms"]
    released = f"{forge}/EXAMPLE/gpuwarden/releases/download/v1.20.3"
    assert platform["uri"] == f"{released}/{made[1]}"
    archive = tmp_path / "dist" / made[1]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as found:
        assert set(found.getnames()) == {x["from"] for x in platform["files"]}
        plugin = found.getmember(platform["bin"])
        content = found.extractfile(plugin)
        assert plugin.mode == 0o755
        assert content is not None
        script = content.read().decode()
    assert re.findall("VERSION|URL", script) == []
    assert f"\nwheel={released}/gpuwarden-1.20.3-py3-none-any.whl\n" in script
    assert 'uvx --from "gpuwarden @ $wheel"' in script


def identity() -> Any:
    (authority,) = POLICY["authorities"]
    (found,) = authority["keyless"]["identities"]
    return found


def test_the_policy_demands_what_the_workflow_signs() -> None:
    assert identity()["issuer"] == "https://token.actions.githubusercontent.com"
    pattern = identity()["subjectRegExp"]
    assert pattern.startswith("^")
    assert re.search(pattern, SIGNED)
    parts = WORKFLOW["jobs"]["image"]["strategy"]["matrix"]["part"]
    (image,) = POLICY["images"]
    assert "image=ghcr.io/${OWNER,,}/gpuwarden-$PART" in steps("image")["Facts"]["run"]
    assert [
        x for x in parts if not fnmatchcase(f"ghcr.io/EXAMPLE/gpuwarden-{x}", image["glob"])
    ] == []
    assert POLICY["mode"] == "enforce"


@pytest.mark.parametrize(
    "other",
    [
        SIGNED.replace("refs/tags/v1.20.3", "refs/heads/main"),
        SIGNED.replace("refs/tags/v1.20.3", "refs/tags/v1.20.3-rc1"),
        SIGNED.replace("release.yml", "other.yml"),
        SIGNED.replace("github.com", "githubXcom"),
        SIGNED.replace("EXAMPLE/gpuwarden/", "EXAMPLE/gpuwarden-fork/"),
        f"https://evil.example/{SIGNED}",
    ],
)
def test_the_policy_refuses_others(other: str) -> None:
    assert not re.search(identity()["subjectRegExp"], other)


def test_the_policy_demands_provenance_of_this_workflow() -> None:
    (attestation,) = POLICY["authorities"][0]["attestations"]
    assert attestation["predicateType"] == "https://slsa.dev/provenance/v1"
    assert f'path:       ".github/workflows/{FILE.name}"' in attestation["policy"]["data"]
    provenance = steps("image")["Provenance"]
    assert provenance["uses"].startswith("actions/attest@")
    assert provenance["with"]["push-to-registry"] is True
    assert "sbom-path" not in provenance["with"]
