"""The API server's way to gpuwarden's webhooks: reviews over mTLS, patches applied strictly.

As a real one: mutating, then name and UID, then validating; a webhook that does not answer refuses
(`failurePolicy: Fail`).
"""

import base64
import json
import secrets
import ssl
import uuid
from typing import Any, Final

import aiohttp

from sandbox.kube.calls import Place
from sandbox.kube.json_patch import applied
from sandbox.kube.objects import Object, RefusedError

PERSON: Final = "kubernetes-admin"
SCHEDULER: Final = "system:serviceaccount:gpuwarden-system:gpuwarden-scheduler"
_MUTATE, _VALIDATE, _BIND = "/mutate/pods", "/validate/pods", "/mutate/bindings"
_TIMEOUT_S: Final = 10.0


class Webhooks:
    """Those of one controller; used from one event loop."""

    def __init__(self, address: str, tls: ssl.SSLContext, server_name: str) -> None:
        """`server_name`: whose certificate the controller has to show at `address`."""
        self._address = address
        self._tls = tls
        self._server_name = server_name

    async def admitted(self, place: Place, body: Object) -> tuple[Object, str | None]:
        """What is created as it is to be stored, and its UID if it has one; raises RefusedError."""
        if place.collection != "pods":
            return body, None
        if place.subresource == "binding":
            return await self._reviewed(_BIND, place, body, SCHEDULER), None
        if place.subresource is not None:
            return body, None
        made = await self._reviewed(_MUTATE, place, body, PERSON)
        metadata, uid = dict(made["metadata"]), str(uuid.uuid4())
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{secrets.token_hex(3)}"
        made = {**made, "metadata": {**metadata, "namespace": place.namespace, "uid": uid}}
        return await self._reviewed(_VALIDATE, place, made, PERSON), uid

    async def _reviewed(self, path: str, place: Place, body: Object, user: str) -> Object:
        response = (await self._post(path, _review(place, body, user)))["response"]
        if not response["allowed"]:
            status = response.get("status") or {}
            text = f"admission webhook denied the request: {status.get('message', '')}"
            raise RefusedError(status.get("code") or 403, "Forbidden", text)
        if "patch" not in response:
            return body
        made: Object = applied(body, json.loads(base64.b64decode(response["patch"])))
        return made

    async def _post(self, path: str, review: Object) -> Any:  # noqa: ANN401 - JSON
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session,
                session.post(
                    f"https://{self._address}{path}",
                    json=review,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                ) as answer,
            ):
                answer.raise_for_status()
                return await answer.json()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            text = f"failed calling webhook {path}: {type(error).__name__}"
            raise RefusedError(500, "InternalError", text) from None


def _review(place: Place, body: Object, user: str) -> Object:
    kind = {"group": "", "version": "v1", "kind": body.get("kind", "Pod")}
    resource = {"group": "", "version": "v1", "resource": place.collection}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": kind,
            "resource": resource,
            "subResource": place.subresource or "",
            "name": place.name or body["metadata"].get("name", ""),
            "namespace": place.namespace,
            "operation": "CREATE",
            "userInfo": {"username": user, "groups": ["system:authenticated"]},
            "object": body,
            "dryRun": False,
        },
    }
