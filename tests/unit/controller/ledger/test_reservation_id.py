import hashlib
import hmac

from controller.ledger.reservation_id import (
    ReservationIds,
    ReservationKey,
    ReservationSubject,
    request_nonce,
)


def test_an_id_of_no_pod_and_no_nonce_is_nobodys() -> None:
    """Not even where its MAC is right."""
    secret = b"n" * 32
    document = b'{"cluster":"lab","gpus":["GPU-a"],"namespace":"team-a",'
    document += b'"node":"gpu-1","nonce":null,"pod":null}'
    message = b"gpuwarden.dev/reservation/v1\n" + document
    text = f"v1.new.{hmac.new(secret, message, hashlib.sha256).hexdigest()}"
    ids = ReservationIds("lab", (ReservationKey("new", secret),))
    assert not ids.is_authentic(text, ReservationSubject("team-a", "gpu-1", ("GPU-a",)))


def test_replicas_of_two_versions_make_the_same_nonce() -> None:
    nonce = request_nonce("team-a", "11111111-2222-3333-4444-555555555555")
    assert nonce == "a72c59ab684b27d4f34e9a72d1fb030a"
