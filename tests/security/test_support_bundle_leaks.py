"""No secret gets into a support bundle, wherever it stands and however it is spelled.

Secrets are planted as plain tokens that no pattern can know for what they are: only that
nothing leaves that is not listed keeps them in. tests/mutation_security/entries/support.py takes
that away, one list after the other, and these tests have to fail.
"""

import base64
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from agent import support_bundle as agent_bundle
from gpuwarden.reasons import ReasonCode
from gpuwarden.settings.loader import AGENT, CONTROLLER, Inputs, Loaded, load
from gpuwarden.settings.values import Address
from gpuwarden.support.archive import pack
from gpuwarden.support.disclosure import received_part
from gpuwarden.support.local import ops_parts, settings_parts, versions_part
from gpuwarden.support.part import CONTROLLER_PARTS
from sandbox.spiffe.ca import InsecureCa
from tests.builders.support_scene import ID, SupportScene
from tests.builders.svids import new_svid
from tests.fakes.secret_search import SecretSearch

TOKEN = "tk9f27c1d48e6b3a50"  # noqa: S105 -- made up, to be looked for
BEARER = "br4b1d7e0c9a63f852"
EVIDENCE = b'{"v":"gpuwarden.dev/evidence/v1","inventory":{"gpus":["' + b"GPU-x" * 40 + b'"]}}'
PEM = InsecureCa("example.org").issue(ID).key_pem.decode()

WRITTEN = {
    "token": TOKEN,
    "bearer": f"Bearer {BEARER}",
    "PEM": PEM,
    "PEM on one line": PEM.replace("\n", " "),
    "token in base64": base64.b64encode(TOKEN.encode()).decode(),
    "token in hex": TOKEN.encode().hex(),
    "evidence": EVIDENCE.decode(),
    "evidence in base64": base64.b64encode(EVIDENCE).decode(),
    "terminal": f'\x1b[2J\u202e{TOKEN}\n{{"fake": 1}}',
    "with a code": f"UNAVAILABLE INVENTORY_CHANGED No space left on device {TOKEN}",
}
ENVIRONMENT = {
    "GPUWARDEN_TELEMETRY_OTLP": f"https://collector.example/{TOKEN}",
    "GPUWARDEN_TELEMETRY_OTLP_HEADERS": f"authorization=Bearer {BEARER}",
    "AWS_SECRET_ACCESS_KEY": TOKEN,
    "HTTPS_PROXY": f"http://user:{TOKEN}@proxy.example",
}
OF_CONTROLLER = {
    "GPUWARDEN_AUDIT_DIR": f"/var/{TOKEN}",
    "GPUWARDEN_AUDIT_KEY": f"/keys/{TOKEN}",
    "GPUWARDEN_STORE_PATH": f"/var/{TOKEN}.db",
    "GPUWARDEN_LISTEN_LOCAL": f"/run/{TOKEN}",
    "GPUWARDEN_INSECURE_STATIC_HASHES": "true",
    "GPUWARDEN_STATIC_HASHES": json.dumps({"node-1": TOKEN}),
}


def search_for() -> SecretSearch:
    search = SecretSearch()
    for name, text in (("token", TOKEN), ("bearer", BEARER)):
        search.add_text(name, text)
        search.add_bytes(name, text.encode())
    search.add_body("evidence", EVIDENCE, b'"inventory":')
    search.add_pem_key("PEM key", PEM.encode())
    return search


def opened(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def assert_clean(search: SecretSearch, data: bytes) -> dict[str, bytes]:
    """Nothing is found in the archive's files, their names, or the archive itself."""
    files = opened(data)
    for name, content in files.items():
        assert search.found_in(content) == set(), name
        assert search.found_in(name.encode()) == set()
        assert content.isascii()
        assert not set(content) - set(range(0x20, 0x7F)) - {0x0A}, name
    assert search.found_in(data) == set()
    return files


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
async def test_what_a_controller_tells_holds_nothing_that_others_wrote(text: str) -> None:
    search, ca = search_for(), InsecureCa("example.org")
    scene = SupportScene(text=text, environment={**ENVIRONMENT, **OF_CONTROLLER})
    svid = new_svid(ca, ID)
    scene.svids.put(svid)
    der = svid.private_key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    search.add_key("key of the SVID", der)
    scene.refusals.note("evidence", "bad", ReasonCode.SIG_INVALID, 13)
    parts = (await scene.parts()).values()
    bundle = pack({"controller": parts}, datetime.now(UTC))
    files = assert_clean(search, bundle.data)
    assert bundle.gaps == ()
    names = {name.rpartition("/")[2] for name in files}
    assert names == {*CONTROLLER_PARTS, "manifest.json"}
    everything = b"".join(files.values())
    for seen in (b"INVENTORY_CHANGED", b"ENOSPC", b"SIG_INVALID", ID.encode(), b'"bad"'):
        assert seen in everything
    again = pack({"controller": map(received_part, parts)}, datetime.now(UTC))
    assert_clean(search, again.data)


async def test_a_part_that_fails_says_nothing_of_the_error_s_text() -> None:
    scene = SupportScene()

    def fails() -> bytes:
        raise OSError(28, f"No space left on device {TOKEN}", PEM)

    parts = await scene.parts(replace(scene.state(), metrics=fails))
    assert parts["metrics.prom"].content is None
    assert parts["metrics.prom"].missing == "OSError ENOSPC; the controller's log has more"
    assert_clean(search_for(), pack({"controller": parts.values()}, datetime.now(UTC)).data)


class Answers(http.server.BaseHTTPRequestHandler):
    """An ops listener that repeats secrets."""

    text = ""

    def do_GET(self) -> None:
        text = self.text
        body = json.dumps(
            {
                "ready": False,
                "reasons": [f"svid: {text}", text],
                "warnings": [text],
                "identity": text,
                "alarms": [text],
                "replicas": [
                    {
                        "address": f"{text}:1" if "\n" not in text else text,
                        "state": text,
                        "code": text,
                        "detail": text,
                        "level": text,
                        "attestationHash": text,
                        "freshForSeconds": text,
                    },
                    {"address": "127.0.0.1:9443", "state": "accepted", "level": "L0"},
                ],
                text: text,
            }
        )
        if self.path == "/metrics":
            body = f'# {text}\ngpuwarden_ready 1.0\n{text}\ngpuwarden_x{{a="{text}"}} 1\n'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def listener(text: str) -> Iterator[Address]:
    handler = type("Telling", (Answers,), {"text": text})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Address("127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def of_process(kind: str, folder: Path) -> Loaded[Any]:
    given = {
        **{name: text for name, text in ENVIRONMENT.items() if name.startswith("GPUWARDEN_")},
        "GPUWARDEN_TRUST_DOMAIN": "example.org",
        "GPUWARDEN_CLUSTER": "c1",
        "GPUWARDEN_WORKLOAD_API": f"unix:///run/{TOKEN}",
    }
    of_kind: Mapping[str, str] = OF_CONTROLLER
    if kind == "agent":
        of_kind = {
            "GPUWARDEN_AGENT_NODE_NAME": "node-1",
            "GPUWARDEN_AGENT_STATE_DIR": str(folder / TOKEN),
        }
    inputs = Inputs(environment={**given, **of_kind})
    return load(AGENT, inputs) if kind == "agent" else load(CONTROLLER, inputs)


@pytest.mark.parametrize("kind", ["agent", "controller"])
@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_what_is_reported_of_a_process_from_outside_holds_nothing_either(
    text: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / TOKEN).mkdir()
    (tmp_path / TOKEN / "agent-state.json").write_text(PEM)
    with listener(text) as ops:
        parts = [versions_part(), *settings_parts(of_process(kind, tmp_path)), *ops_parts(ops)]
    bundle = pack({"local": parts}, datetime.now(UTC))
    files = assert_clean(search_for(), bundle.data)
    assert bundle.gaps == ()
    [readyz] = [json.loads(x) for name, x in files.items() if name.endswith("readyz.json")]
    assert readyz["reasons"][0]["about"] == "svid"
    assert readyz["replicas"][1]["address"] == "127.0.0.1:9443"
    [metrics] = [x for name, x in files.items() if name.endswith("metrics.prom")]
    assert metrics == b"gpuwarden_ready 1.0\n"


def test_the_agent_s_own_command_holds_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    flags = ["--trustDomain=example.org", "--cluster=c1", f"--workloadApi=unix:///run/{TOKEN}"]
    with listener(TOKEN) as ops:
        status = agent_bundle.main(
            [
                "--output",
                str(tmp_path / "bundle"),
                "--ops",
                str(ops),
                *flags,
                "--agent.nodeName=node-1",
                f"--agent.stateDir=/{TOKEN}",
            ]
        )
    assert status == 0
    files = assert_clean(search_for(), (tmp_path / "bundle").read_bytes())
    assert any(b'"there": false' in content for content in files.values())
