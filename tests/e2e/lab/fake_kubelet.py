"""Plays kubelet for pods on fake nodes: what is bound runs, and what is to end ends.

A pod of a Job has done its work as soon as it runs. Pods are followed by watches of a second
each, so nothing here is faster than that.
"""

import http.client
import json
import threading
from collections.abc import Iterable, Iterator

from tests.e2e.lab.api import Api, ApiError, Document

_PODS = "/api/v1/pods"
_WATCH = "watch=true&allowWatchBookmarks=true&timeoutSeconds=1"


class FakeKubelet:
    """Of some nodes; goes on until `stop`."""

    def __init__(self, api: Api, nodes: Iterable[str]) -> None:
        self._api = api
        self._nodes = set(nodes)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake kubelet", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nobody runs or ends pods any more."""
        self._stopped.set()
        self._thread.join()

    def leave(self, node: str) -> None:
        """The machine is gone, with everything on it."""
        self._nodes.discard(node)

    def _run(self) -> None:
        version = ""
        with self._api.kept_open() as api:
            while not self._stopped.is_set():
                try:
                    version = self._follow(api, version)
                except (OSError, http.client.HTTPException, ApiError):
                    version = ""  # the API server forgets, or is down: tests do that; begin again

    def _follow(self, api: Api, version: str) -> str:
        """Look at all pods, or at what changed since; from which version to go on."""
        if not version:
            found = api.get(_PODS)
            for pod in found["items"]:
                self._see(api, pod)
            return str(found["metadata"]["resourceVersion"])
        for pod in _changed(api, version):
            version = pod["metadata"]["resourceVersion"]
            self._see(api, pod)
        return version

    def _see(self, api: Api, pod: Document) -> None:
        if pod.get("spec", {}).get("nodeName") not in self._nodes:
            return
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            api.delete(path, grace_s=0)
        elif pod["status"]["phase"] == "Pending":
            owners = [x["kind"] for x in metadata.get("ownerReferences", [])]
            phase = "Succeeded" if "Job" in owners else "Running"
            try:
                api.patch(f"{path}/status", {"status": {"phase": phase}})
            except ApiError as error:
                if error.status != http.HTTPStatus.NOT_FOUND:
                    raise


def _changed(api: Api, version: str) -> Iterator[Document]:
    """Pods that were written, and bookmarks; raises ApiError where the server has forgotten."""
    for line in api.text(f"{_PODS}?{_WATCH}&resourceVersion={version}").splitlines():
        event = json.loads(line)
        if event["type"] == "ERROR":
            raise ApiError(event["object"]["code"], "", event["object"]["message"])
        if event["type"] != "DELETED":
            yield event["object"]
