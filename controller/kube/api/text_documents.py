"""Small texts as ConfigMaps of gpuwarden's own namespace, each with the version it was read at."""

from typing import Final

import msgspec

from controller.kube.api.client import ApiClient
from controller.kube.api.resources import CONFIG_MAPS, ApiError

_KEY: Final = "document"


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""


class _ConfigMap(msgspec.Struct, gc=False):
    metadata: _Metadata
    data: dict[str, str] = {}


_DECODER: Final = msgspec.json.Decoder(_ConfigMap)


class TextDocuments:
    """Reads and writes them; nothing is written over what somebody else has written."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def read(self, name: str) -> tuple[str, str] | None:
        """Text and version; None where there is none. Raises ApiError."""
        try:
            body = await self._api.get(CONFIG_MAPS, name, self._namespace)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise
        found = _decoded(body)
        return found.data.get(_KEY, "{}"), found.metadata.resource_version

    async def write(self, name: str, text: str, version: str | None) -> str:
        """Write in place of `version`, or for the first time; returns the new version.

        Raises ApiError; `is_conflict` where somebody else was first.
        """
        if version is None:
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": self._namespace},
                "data": {_KEY: text},
            }
            answer = await self._api.create(CONFIG_MAPS, body, self._namespace)
        else:
            patch = {"metadata": {"resourceVersion": version}, "data": {_KEY: text}}
            answer = await self._api.patch(CONFIG_MAPS, name, patch, self._namespace)
        return _decoded(answer).metadata.resource_version


def _decoded(body: bytes) -> _ConfigMap:
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ApiError("a ConfigMap that cannot be read", 422) from None
