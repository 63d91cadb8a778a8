"""Vectors of canonical JSON, strict decoding, class documents and node identities."""

from typing import Any

import msgspec

from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.class_document import attestation_hash, class_document
from gpuwarden.evidence.model import Inventory
from gpuwarden.evidence.node_identity import identity_digest, node_identity
from tests.builders.inventory import gpu, gpu_uuid, host, inventory, lost_gpu, mig_device

_A100 = {
    "product": "NVIDIA A100-SXM4-80GB",
    "pci": "10de:20b2",
    "subsystem": "10de:147f",
    "vbios": "92.00.45.00.03",
    "gsp": None,
    "memory_bytes": "85899345920",
    "compute_capability": "8.0",
    "architecture": "Ampere",
}
_GB10 = {
    "product": "NVIDIA GB10",
    "serial": None,
    "pci": "10de:2e12",
    "subsystem": "0000:0000",
    "vbios": None,
    "gsp": None,
    "memory_bytes": None,
    "ecc": None,
    "mig": None,
    "virt": None,
}
_DIGEST = sha256_hex(b"gpuwarden golden vector")

_INVENTORIES: dict[str, Inventory] = {
    "one H100": inventory(gpu(0)),
    "eight H100 are the class of one": inventory(*(gpu(i) for i in range(8))),
    "order does not count": inventory(gpu(2), gpu(0), gpu(1)),
    "one of two is lost": inventory(gpu(0), lost=(lost_gpu(1),)),
    "A100 with MIG devices": inventory(
        gpu(0, mig=True, mig_devices=(mig_device(1), mig_device(2)), **_A100)
    ),
    "A100 with MIG on and no device": inventory(gpu(0, mig=True, **_A100)),
    "mixed GPUs": inventory(gpu(0), gpu(1, **_A100), gpu(2), gpu(3, ecc=False)),
    "facts that do not exist are null": inventory(
        gpu(0, **_GB10), host=host(cc=None, system_uuid=None, arch="aarch64", cuda=None)
    ),
    "zero memory is null": inventory(gpu(0, memory_bytes="0")),
    "memory is cut to whole MiB": inventory(gpu(0, memory_bytes="85520809983")),
    "confidential computing": inventory(gpu(0), host=host(cc="on")),
}

_PROFILES_PINNED = "v1:sha256:123c15106eb57b7b27b69cee5e19bb1d1522fc70c5646392d1e8d5cbc93c4fd2"


def class_documents() -> list[dict[str, Any]]:
    """Inventory and context in, document and hash out. The first is the one of the format."""
    vectors = [
        _class_vector(name, one, level="L1", attestor="k8s_psat")
        for name, one in _INVENTORIES.items()
    ]
    measured = {gpu_uuid(1): _DIGEST}
    one = _INVENTORIES["one H100"]
    vectors.append(_class_vector("level L0 has no attestor", one, level="L0", attestor=None))
    vectors.append(
        _class_vector("measured", one, level="L2", attestor="k8s_psat", spdm=measured, tpm=_DIGEST)
    )
    if vectors[0]["hash"] != _PROFILES_PINNED:
        raise AssertionError("the first vector is fixed by the format")
    return vectors


def node_identities() -> list[dict[str, Any]]:
    """Inventory and context in, document and digest out."""
    return [
        _identity_vector("nothing but names", _INVENTORIES["one H100"], {}),
        _identity_vector(
            "all facts, sorted by UUID",
            _INVENTORIES["order does not count"],
            {
                "node_uid": "0b6c1d5e-2f6a-4c58-9a44-7d3f0f1b2a11",
                "spire_agent": "spiffe://example.org/spire/agent/k8s_psat/prod/0b6c1d5e",
                "ek": _DIGEST,
                "identity_keys": {gpu_uuid(1): _DIGEST},
            },
        ),
        _identity_vector(
            "serials that are none",
            inventory(gpu(0, serial="0"), gpu(1, serial="N/A"), gpu(2, serial=""), gpu(3)),
            {},
        ),
        _identity_vector(
            "boards may share a serial", inventory(gpu(0, serial="7"), gpu(1, serial="7")), {}
        ),
        _identity_vector("MIG devices are not in it", _INVENTORIES["A100 with MIG devices"], {}),
    ]


def canonical_texts() -> dict[str, Any]:
    """JSON text in, RFC 8785 text out; and texts that a decoder must refuse."""
    accepted = [
        ("keys are sorted", '{"b":1,"a":2,"B":3,"_":4,"1":5}'),
        ("keys are sorted by UTF-16 units", '{"\\ufb33":1,"\\ud83d\\ude00":2,"\\u20ac":3,"a":4}'),
        ("blanks go", ' { "a" : [ 1 , true , null , "x" ] } '),
        ("control characters are escaped", '"\\u0000\\u001f\\b\\t\\n\\f\\r\\u007f"'),
        ("only what must be is escaped", '"\\"\\\\\\/\\u00e9\\u2028<>&\'"'),
        ("the largest integers", "[9007199254740991,-9007199254740991,0,-0]"),
        ("empty", '{"a":{},"b":[],"c":""}'),
    ]
    return {
        "accepted": [_canonical_vector(name, text) for name, text in accepted],
        "refused": [{"name": name, "input": text} for name, text in _REFUSED],
    }


_REFUSED = [
    ("duplicate key", '{"a":1,"a":1}'),
    ("duplicate key by escape", '{"a":1,"\\u0061":2}'),
    ("duplicate key deep inside", '[{"x":{"k":null,"k":null}}]'),
    ("fraction", "1.0"),
    ("exponent", "1e2"),
    ("not a number", "NaN"),
    ("infinity", "-Infinity"),
    ("integer of 2**53", "9007199254740992"),
    ("integer of -2**53", "-9007199254740992"),
    ("huge integer", "1" * 400),
    ("leading zero", "01"),
    ("lone surrogate", '"\\ud800"'),
    ("lone surrogate in a key", '{"\\udc00":1}'),
    ("trailing comma", "[1,]"),
    ("two values", "1 2"),
    ("raw control character", '"\n"'),
    ("byte order mark", "\ufeff1"),
    ("nested too deeply", "[" * 33 + "]" * 33),
    ("empty", ""),
    ("not closed", '{"a":"'),
]


def _canonical_vector(name: str, text: str) -> dict[str, Any]:
    form = canonical_json(msgspec.json.decode(text.encode()))
    return {"name": name, "input": text, "canonical": form.decode(), "sha256": sha256_hex(form)}


def _class_vector(name: str, one: Inventory, **context: Any) -> dict[str, Any]:
    document = class_document(one, trust_domain="example.org", **context)
    return {
        "name": name,
        "inventory": msgspec.to_builtins(one),
        "context": {"trustDomain": "example.org", "spdm": {}, "tpm": None, **context},
        "document": canonical_json(document).decode(),
        "hash": attestation_hash(document),
    }


def _identity_vector(name: str, one: Inventory, context: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {
        "trust_domain": "example.org",
        "cluster": "prod",
        "node_name": "gpu-a1",
    }
    document = node_identity(one, **names, **context)
    full = {"node_uid": None, "spire_agent": None, "ek": None, "identity_keys": {}, **context}
    return {
        "name": name,
        "inventory": msgspec.to_builtins(one),
        "context": {_camel(key): value for key, value in {**names, **full}.items()},
        "document": canonical_json(document).decode(),
        "digest": identity_digest(document),
    }


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
