"""Vectors of reservation ids: keys, subjects, and the ids that they make."""

from typing import Any

from controller.ledger.reservation_id import ReservationIds, ReservationKey, ReservationSubject

_KEYS = {"k1": bytes(range(32)), "k2": b"a second secret of thirty-two by"}
_NONCE = "00112233445566778899aabbccddeeff"
_GPU = "GPU-8a1f6c2e-1111-2222-3333-0000000000"
_POD = "0c5f2b7e-9f7a-4d0e-8d6b-5b2f1f0a9e11"


def _subject(*gpus: str, pod_uid: str | None = _POD, namespace: str = "team-a") -> Any:
    return ReservationSubject(namespace, "gpu-1.example.org", gpus, pod_uid)


_CASES: dict[str, tuple[str, str, ReservationSubject, str | None]] = {
    "one GPU": ("prod", "k1", _subject(f"{_GPU}01"), None),
    "another key": ("prod", "k2", _subject(f"{_GPU}01"), None),
    "another cluster": ("stage", "k1", _subject(f"{_GPU}01"), None),
    "another namespace": ("prod", "k1", _subject(f"{_GPU}01", namespace="team-b"), None),
    "two GPUs": ("prod", "k1", _subject(f"{_GPU}01", f"{_GPU}02"), None),
    "a MIG device": ("prod", "k1", _subject(f"MIG-{_GPU[4:]}01"), None),
    "early": ("prod", "k1", _subject(f"{_GPU}01", pod_uid=None), _NONCE),
}


def reservation_ids() -> list[dict[str, Any]]:
    """One object per id."""
    made = []
    for name, (cluster, key_id, subject, nonce) in _CASES.items():
        ids = ReservationIds(cluster, (ReservationKey(key_id, _KEYS[key_id]),))
        made.append(
            {
                "name": name,
                "cluster": cluster,
                "keyId": key_id,
                "secret": _KEYS[key_id].hex(),
                "namespace": subject.namespace,
                "pod": subject.pod_uid,
                "nonce": nonce,
                "node": subject.node,
                "gpus": list(subject.gpus),
                "id": ids.make(subject, nonce),
            }
        )
    return made
