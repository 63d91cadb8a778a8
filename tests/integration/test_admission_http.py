"""The webhooks over mTLS, as an API server and worse callers meet them."""

import asyncio
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.admission.review import AdmissionHandler, AdmissionRequest, Verdict
from controller.web.listener import HttpServer
from controller.web.tls import Reload, TlsFiles
from controller.web.webhook import AdmissionLimits, AdmissionWebhooks
from gpuwarden.settings.values import Address
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import patch_of, review_json
from tests.builders.admitted_pods import UUIDS, mutate, new_pod, patched
from tests.builders.web_certificates import WebCa
from tests.fakes.admission import AdmissionMeasurements, AdmissionWorld
from tests.hang import HANG_S, PATIENT

BINDING_WEBHOOK = "/mutate/bindings"


@dataclass
class Webhooks:
    ca: WebCa
    files: TlsFiles
    server: HttpServer
    measurements: AdmissionMeasurements
    port: int = 0

    @asynccontextmanager
    async def session(self, pair: tuple[Path, Path] | None) -> AsyncIterator[aiohttp.ClientSession]:
        context = ssl.create_default_context(cafile=str(self.ca.file))
        if pair is not None:
            context.load_cert_chain(*pair)
        connector = aiohttp.TCPConnector(ssl=context)
        timeout = aiohttp.ClientTimeout(total=HANG_S)
        async with aiohttp.ClientSession(
            f"https://localhost:{self.port}", connector=connector, timeout=timeout
        ) as made:
            yield made

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[aiohttp.ClientSession]:
        async with self.session(self.ca.issue("api-server")) as made:
            yield made


@asynccontextmanager
async def serving(
    folder: Path,
    others: Mapping[str, AdmissionHandler] | None = None,
    *,
    report: bool = False,
    open_paths: frozenset[str] = frozenset(),
    **limits: Any,
) -> AsyncIterator[Webhooks]:
    ca = WebCa(folder, "ca")
    pair = ca.issue("webhook", server=True)
    files = TlsFiles(folder / "tls.crt", folder / "tls.key", ca.file)
    for source, target in zip(pair, (files.certificate, files.private_key), strict=True):
        shutil.copy(source, target)
    measurements = AdmissionMeasurements()
    bounds = AdmissionLimits(**{**PATIENT, **limits})
    webhooks = AdmissionWebhooks(
        {**AdmissionWorld({"team-a"}).webhooks(report=report).handlers(), **(others or {})},
        metrics=measurements,
        limits=bounds,
        report=report,
        open_paths=open_paths,
    )
    server = HttpServer(
        webhooks.application(),
        name="admission",
        address=Address("127.0.0.1", 0),
        tls=files,
        limits=bounds,
        observer=measurements,
    )
    found = Webhooks(ca, files, server, measurements)
    _, found.port = await server.start()
    try:
        yield found
    finally:
        await server.stop(0.5)


async def posted(
    client: aiohttp.ClientSession, path: str, review: dict[str, Any]
) -> dict[str, Any]:
    async with client.post(path, json=review) as answer:
        assert answer.status == 200
        assert answer.content_type == "application/json"
        found: dict[str, Any] = await answer.json()
        assert found["kind"] == "AdmissionReview"
        assert found["response"]["uid"] == review["request"]["uid"]
        return found


async def test_a_pod_is_patched_then_let_in(tmp_path: Path) -> None:
    async with serving(tmp_path) as here, here.caller() as client:
        pod = new_pod(annotations=UUIDS)
        answer = await posted(client, "/mutate/pods?timeout=10s", review_json(pod))
        stored = applied(pod, patch_of(answer))
        assert stored == patched(pod)
        assert mutate(stored).patch == ()
        again = await posted(client, "/mutate?timeout=10s", review_json(stored))
        assert again["response"] == {"uid": again["response"]["uid"], "allowed": True}
        verdict = await posted(client, "/validate/pods?timeout=10s", review_json(stored))
        assert verdict["response"]["allowed"] is True
        refused = await posted(client, "/validate/pods?timeout=10s", review_json(pod))
        assert refused["response"]["allowed"] is False
        assert "gpuwarden: BYPASS_UNINJECTED" in refused["response"]["status"]["message"]
    assert here.measurements.answers == [
        ("/mutate/pods", "patched"),
        ("/mutate", "untouched"),
        ("/validate/pods", "admitted"),
        ("/validate/pods", "refused"),
    ]


async def test_only_certificates_of_the_ca_may_call(tmp_path: Path) -> None:
    other = WebCa(tmp_path, "other")
    async with serving(tmp_path) as here:
        server_only = here.ca.issue("server-only", server=True)
        for pair in (None, other.issue("stranger"), server_only):
            async with here.session(pair) as client:
                with pytest.raises(aiohttp.ClientError):
                    await client.post("/mutate/pods", json=review_json(new_pod()))
        async with aiohttp.ClientSession() as plain:
            with pytest.raises(aiohttp.ClientError):
                await plain.post(f"http://127.0.0.1:{here.port}/mutate/pods", json={})
        assert here.measurements.answers == []


async def test_a_renewed_certificate_is_served_and_a_torn_one_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as here, here.caller() as client:
        await posted(client, "/mutate", review_json(new_pod()))
        certificate, key = here.ca.issue("renewed", server=True)
        shutil.copy(certificate, here.files.certificate)
        assert here.server.reload_certificates() is Reload.REFUSED
        shutil.copy(key, here.files.private_key)
        assert here.server.reload_certificates() is Reload.CHANGED
        await posted(client, "/mutate", review_json(new_pod()))
        async with here.caller() as fresh:
            await posted(fresh, "/mutate", review_json(new_pod()))
    refused, taken = here.measurements.certificates
    assert refused is not None
    assert "expected PEM files that fit together" in refused
    assert taken is None


@pytest.mark.parametrize(
    ("body", "content_type", "status", "result", "text"),
    [
        (b"", "application/json", 400, "bad", "no JSON"),
        (b"{", "application/json", 400, "bad", "no JSON"),
        (b'{"kind":"AdmissionReview"}', "application/json", 400, "bad", "not an AdmissionReview"),
        (
            json.dumps(review_json(new_pod())).encode(),
            "text/plain",
            400,
            "bad",
            "expected application/json",
        ),
        (b"x" * 70_000, "application/json", 413, "too_large", "larger than 65536 bytes"),
    ],
)
async def test_what_is_no_review_is_refused_as_one_without_a_uid(
    tmp_path: Path, body: bytes, content_type: str, *, status: int, result: str, text: str
) -> None:
    async with serving(tmp_path, body_bytes=65_536) as here, here.caller() as client:
        headers = {"Content-Type": content_type}
        async with client.post("/validate/pods", data=body, headers=headers) as answer:
            assert answer.status == status
            assert answer.content_type == "application/json"
            found = await answer.json()
        response = found.pop("response")
        assert found == {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        assert (response["uid"], response["allowed"]) == ("", False)
        assert (response["status"]["status"], response["status"]["code"]) == ("Failure", status)
        assert text in response["status"]["message"]
        await posted(client, "/validate/pods", review_json(new_pod()))
    assert here.measurements.answers[0] == ("/validate/pods", result)


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with serving(tmp_path, receive_s=0.05) as here, here.caller() as client:
        headers = {"Content-Type": "application/json"}
        async with client.post("/mutate", data=slow(), headers=headers) as answer:
            assert answer.status == 408
        assert here.measurements.answers == [("/mutate", "slow")]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/mutate", 405),
        ("GET", "/health", 200),
        ("POST", "/healthz", 405),
        ("POST", "/", 404),
        ("POST", BINDING_WEBHOOK, 404),
    ],
)
async def test_other_methods_and_paths(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with (
        serving(tmp_path) as here,
        here.caller() as client,
        client.request(method, path) as answer,
    ):
        assert answer.status == status


class BindingWebhook:
    """A handler of another part of the controller."""

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        self._error = error
        self._waits = waits
        self.ended = ""

    async def decide(self, request: AdmissionRequest) -> Verdict:
        if self._error is not None:
            raise self._error
        if self._waits:
            try:
                await asyncio.Event().wait()
            finally:
                self.ended = request.operation
        return Verdict(warnings=("hello",), result="admitted")


async def test_another_part_answers_its_own_path(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, {BINDING_WEBHOOK: BindingWebhook().decide}) as here,
        here.caller() as client,
    ):
        answer = await posted(client, BINDING_WEBHOOK, review_json(None))
        assert answer["response"]["warnings"] == ["hello"]
        assert here.measurements.answers == [(BINDING_WEBHOOK, "admitted")]


async def test_what_is_not_decided_in_time_is_refused_before_the_api_server_gives_up(
    tmp_path: Path,
) -> None:
    binding_webhook = BindingWebhook(waits=True)
    async with (
        serving(tmp_path, {BINDING_WEBHOOK: binding_webhook.decide}, spare_s=0.9) as here,
        here.caller() as client,
    ):
        answer = await posted(client, f"{BINDING_WEBHOOK}?timeout=1s", review_json(None))
    response = answer["response"]
    assert response["allowed"] is False
    assert response["status"]["code"] == 500
    assert "ADMISSION_FAILED" in response["status"]["message"]
    assert binding_webhook.ended == "CREATE"
    assert here.measurements.failures == [(BINDING_WEBHOOK, "overdue")]
    assert here.measurements.answers == [(BINDING_WEBHOOK, "failed")]


async def test_a_failure_is_a_refusal_that_tells_nothing(tmp_path: Path) -> None:
    binding_webhook = BindingWebhook(RuntimeError("secret"))
    async with (
        serving(tmp_path, {BINDING_WEBHOOK: binding_webhook.decide}) as here,
        here.caller() as client,
    ):
        answer = await posted(client, f"{BINDING_WEBHOOK}?timeout=7s", review_json(None))
    assert answer["response"]["allowed"] is False
    assert "secret" not in json.dumps(answer)
    assert here.measurements.failures == [(BINDING_WEBHOOK, "RuntimeError")]


async def test_in_report_only_mode_a_failure_lets_in_and_says_so(tmp_path: Path) -> None:
    binding_webhook = BindingWebhook(RuntimeError("broken"))
    async with (
        serving(tmp_path, {BINDING_WEBHOOK: binding_webhook.decide}, report=True) as here,
        here.caller() as client,
    ):
        answer = await posted(client, BINDING_WEBHOOK, review_json(None))
        assert answer["response"]["allowed"] is True
        assert "ADMISSION_FAILED" in answer["response"]["warnings"][0]
        shown = await posted(client, "/validate/pods", review_json(new_pod(hostPID=True)))
        assert shown["response"]["allowed"] is True
        assert "would be denied: gpuwarden: BYPASS_HOST_PID" in shown["response"]["warnings"][0]
        unpatched = await posted(client, "/mutate/pods", review_json(new_pod()))
        assert patch_of(unpatched) == []


@pytest.mark.parametrize("fails", [None, RuntimeError("broken")], ids=["slow", "broken"])
async def test_a_webhook_that_fails_open_lets_in_without_a_word(
    tmp_path: Path, fails: Exception | None
) -> None:
    hints = BindingWebhook(fails, waits=fails is None)
    path = "/mutate/hints"
    async with (
        serving(tmp_path, {path: hints.decide}, open_paths=frozenset({path}), spare_s=0.9) as here,
        here.caller() as client,
    ):
        answer = await posted(client, f"{path}?timeout=1s", review_json(new_pod()))
        assert answer["response"] == {"uid": answer["response"]["uid"], "allowed": True}
        closed = await posted(client, "/validate/pods", review_json(new_pod(hostPID=True)))
        assert closed["response"]["allowed"] is False
    assert here.measurements.answers[0] == (path, "failed")
    reason = "overdue" if fails is None else "RuntimeError"
    assert here.measurements.failures == [(path, reason)]


async def test_many_at_once_are_each_answered_with_their_own_uid(tmp_path: Path) -> None:
    async with serving(tmp_path) as here, here.caller() as client:
        reviews = [
            review_json(
                new_pod(annotations={"gpuwarden.dev/gpu-uuids": f"GPU-{number}"}), uid=str(number)
            )
            for number in range(1, 60)
        ]
        answers = await asyncio.gather(*(posted(client, "/mutate/pods", x) for x in reviews))
    assert [int(x["response"]["uid"]) for x in answers] == list(range(1, 60))
    assert all(patch_of(x) for x in answers)
