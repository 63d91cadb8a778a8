"""Certificates as objects of the Kubernetes API: Secrets, the trust bundle, caBundles. Pure.

An error names the object and the entry. It never holds any part of what is in them.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final, TypeVar, assert_never

import msgspec

from controller.certificates.leaves import AUTHORITY_SECRET, LeafSpec
from controller.certificates.material import (
    BUNDLE,
    CERTIFICATE,
    KEY,
    Authorities,
    Entries,
    Leaf,
    MaterialError,
    authority_entries,
    leaf_entries,
    read_authorities,
    read_leaf,
)
from controller.certificates.plan import (
    Bundles,
    Found,
    PutAuthorities,
    PutBundle,
    PutLeaf,
    Target,
    TargetKind,
    Unreadable,
    Write,
)
from controller.kube.api.client import JSON_PATCH, MERGE_PATCH
from controller.kube.api.resources import (
    CONFIG_MAPS,
    GROUP,
    MUTATING_WEBHOOKS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)

T = TypeVar("T")

NEXT_PUBLISHED: Final = f"{GROUP}/next-published"
"""Annotation of the authorities: since when the next one is in every bundle."""
MOST_OBJECT_BYTES: Final = 1 << 20
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_LABELS: Final = {
    "app.kubernetes.io/name": "gpuwarden",
    "app.kubernetes.io/component": "controller",
}
_AUTHORITY_ENTRIES: Final = ("current.crt", "current.key", "next.crt", "next.key", "former.crt")
_REVISION: Final = "controller-revision-hash"
"""Label of a StatefulSet's pods."""
CONTROLLER_PODS: Final = ",".join(f"{key}={text}" for key, text in _LABELS.items())
"""Selector of the controllers' pods."""
_OVER: Final = frozenset({"Succeeded", "Failed"})
_LEAF_ENTRIES: Final = (CERTIFICATE, KEY, BUNDLE)

RESOURCES: Final[Mapping[TargetKind, Resource]] = {
    TargetKind.MUTATING: MUTATING_WEBHOOKS,
    TargetKind.VALIDATING: VALIDATING_WEBHOOKS,
    TargetKind.CONFIG_MAP: CONFIG_MAPS,
}
_KINDS: Final = {
    TargetKind.MUTATING: "MutatingWebhookConfiguration",
    TargetKind.VALIDATING: "ValidatingWebhookConfiguration",
    TargetKind.CONFIG_MAP: "ConfigMap",
}


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Secret(msgspec.Struct, gc=False):
    metadata: _Metadata
    data: dict[str, str] | None = None


class _ClientConfig(msgspec.Struct, rename={"bundle": "caBundle"}, gc=False):
    bundle: str = ""


class _Webhook(msgspec.Struct, rename="camel", gc=False):
    client_config: _ClientConfig


class _Webhooks(msgspec.Struct, gc=False):
    metadata: _Metadata
    webhooks: list[_Webhook] | None = None


class _PodMetadata(msgspec.Struct, gc=False):
    labels: dict[str, str] | None = None


class _PodStatus(msgspec.Struct, gc=False):
    phase: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: _PodMetadata
    status: _PodStatus


_POD: Final = msgspec.json.Decoder(_Pod)
_SECRET: Final = msgspec.json.Decoder(_Secret)
_WEBHOOKS: Final = msgspec.json.Decoder(_Webhooks)


# --- reading


def read_leaf_secret(spec: LeafSpec, body: bytes) -> Found[Leaf] | Unreadable:
    """The leaf in a Secret."""
    return _read(f"Secret {spec.secret}", body, _SECRET, _leaf)


def read_authority_secret(body: bytes) -> Found[Authorities] | Unreadable:
    """The authorities in their Secret."""
    return _read(f"Secret {AUTHORITY_SECRET}", body, _SECRET, _authorities)


def read_target(target: Target, body: bytes) -> Found[Bundles] | Unreadable:
    """The bundles of an object; what is no bundle is one that lacks everything."""
    if target.kind is TargetKind.CONFIG_MAP:
        return _read(shown(target), body, _SECRET, _config_map)
    return _read(shown(target), body, _WEBHOOKS, _webhooks)


def are_of_one_revision(pods: Iterable[bytes]) -> bool:
    """Whether those of these pods that run were made from one template; raises MaterialError."""
    try:
        found = [_POD.decode(x) for x in pods]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MaterialError("an object that cannot be read") from None
    running = (x for x in found if x.status.phase not in _OVER)
    return len({(x.metadata.labels or {}).get(_REVISION) for x in running}) <= 1


def shown(target: Target) -> str:
    """The object, for people."""
    return f"{_KINDS[target.kind]} {target.name}"


S = TypeVar("S", _Secret, _Webhooks)


def _read(
    name: str, body: bytes, decoder: "msgspec.json.Decoder[S]", value: Callable[[S], T]
) -> Found[T] | Unreadable:
    if len(body) > MOST_OBJECT_BYTES:
        return Unreadable(f"{name}: {len(body)} bytes, at most {MOST_OBJECT_BYTES}")
    try:
        found = decoder.decode(body)
        return Found(found.metadata.resource_version, value(found))
    except MaterialError as error:
        return Unreadable(f"{name}: {error}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Unreadable(f"{name}: an object that cannot be read")


def _leaf(secret: _Secret) -> Leaf:
    return read_leaf(_entries(secret, _LEAF_ENTRIES))


def _authorities(secret: _Secret) -> Authorities:
    published = (secret.metadata.annotations or {}).get(NEXT_PUBLISHED)
    return read_authorities(_entries(secret, _AUTHORITY_ENTRIES), published)


def _config_map(found: _Secret) -> Bundles:
    return Bundles(((found.data or {}).get(BUNDLE, "").encode(),))


def _webhooks(found: _Webhooks) -> Bundles:
    return Bundles(tuple(_lenient(one.client_config.bundle) for one in found.webhooks or ()))


def _lenient(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _entries(secret: _Secret, names: Iterable[str]) -> Entries:
    data, found = secret.data or {}, {}
    for name in names:
        if name in data:
            try:
                found[name] = base64.b64decode(data[name], validate=True)
            except (binascii.Error, ValueError):
                raise MaterialError(f"{name}: expected base64") from None
    return found


# --- writing


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """A call of the API; `body` holds keys."""

    resource: Resource
    name: str
    namespace: str | None
    is_new: bool
    """Create the object; it is an error if there is one. Else patch the version that was read."""
    body: object = field(repr=False)
    content_type: str = MERGE_PATCH
    shown: str
    """The object, for people."""


def write_request(write: Write, namespace: str) -> WriteRequest:
    """How to make a write of the plan."""
    match write:
        case PutLeaf():
            content = {"type": "kubernetes.io/tls", "data": leaf_entries(write.leaf)}
            return _request("Secret", write.spec.secret, namespace, write.version, content)
        case PutAuthorities():
            entries, published = authority_entries(write.authorities), write.authorities.published
            text = None if published is None else f"{published.astimezone(UTC):{_TIME}}"
            content = {"type": "Opaque", "data": entries}
            note = {NEXT_PUBLISHED: text}
            return _request("Secret", AUTHORITY_SECRET, namespace, write.version, content, **note)
        case PutBundle() if write.target.is_ours:
            content = {"data": {BUNDLE: write.bundle.decode()}}
            return _request("ConfigMap", write.target.name, namespace, write.version, content)
        case PutBundle():
            return WriteRequest(
                resource=RESOURCES[write.target.kind],
                name=write.target.name,
                namespace=None,
                is_new=False,
                body=_webhooks_patch(write),
                content_type=JSON_PATCH,
                shown=shown(write.target),
            )
        case _:
            assert_never(write)


def _webhooks_patch(write: PutBundle) -> list[dict[str, Any]]:
    """The bundles and nothing else; another version is a conflict."""
    text = base64.b64encode(write.bundle).decode()
    return [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": write.version},
        *(
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": text}
            for number in range(write.count)
        ),
    ]


def _request(
    kind: str,
    name: str,
    namespace: str,
    version: str | None,
    content: Mapping[str, Any],
    **annotations: str | None,
) -> WriteRequest:
    """A new object, without what is None; or a merge patch, which takes that away."""
    metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
    body: dict[str, Any] = {"metadata": metadata, "data": _encoded(content["data"])}
    if version is None:
        metadata |= {"name": name, "namespace": namespace, "labels": _LABELS}
        metadata["annotations"] = _present(annotations)
        body |= {"apiVersion": "v1", "kind": kind, "data": _present(body["data"])}
        body |= {"type": content["type"]} if "type" in content else {}
    else:
        metadata["resourceVersion"] = version
    return WriteRequest(
        resource=SECRETS if kind == "Secret" else CONFIG_MAPS,
        name=name,
        namespace=namespace,
        is_new=version is None,
        body=body,
        shown=f"{kind} {name}",
    )


def _present(texts: Mapping[str, str | None]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if text is not None}


def _encoded(entries: Mapping[str, bytes | str | None]) -> dict[str, str | None]:
    """Bytes of a Secret in base64; text of a ConfigMap as it is."""
    return {
        name: base64.b64encode(x).decode() if isinstance(x, bytes) else x
        for name, x in entries.items()
    }
