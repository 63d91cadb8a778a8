"""Files of others are as they were published: nobody changes them here by the way."""

import hashlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("path", "version", "digest"),
    [
        (
            "controller/console/static/htmx.min.js",
            "2.0.10",
            "71ea67185bfa8c98c39d31717c6fce5d852370fcdfd129db4543774d3145c0de",
        ),
        (
            "tests/browser/vendor/axe.min.js",
            "4.11.1",
            "7dbfabdfc6062936d79c873ddbb5f811a1219fca3928bd8cc9dd81f1e65f4720",
        ),
    ],
)
def test_vendored_file(path: str, version: str, digest: str) -> None:
    content = (ROOT / path).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest
    assert version.encode() in content
