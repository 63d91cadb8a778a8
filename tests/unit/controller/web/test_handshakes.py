"""Certificates that a listener's clients have shown, and when the first of them ends."""

import math
from datetime import UTC, datetime, timedelta

from controller.web.handshakes import ClientCertificates

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAME = "commonName=kube-apiserver"


def test_before_a_client_has_shown_one_nothing_is_known() -> None:
    clients = ClientCertificates()
    assert math.isnan(clients.seconds_left(NOW))
    assert clients.warning(NOW) is None
    assert clients.ends is None


def test_the_first_to_end_counts() -> None:
    clients = ClientCertificates()
    clients.show("10.0.0.1", NAME, NOW + 30 * DAY, NOW)
    clients.show("10.0.0.2", NAME, NOW + 20 * DAY, NOW)
    clients.show("10.0.0.3", NAME, NOW + 25 * DAY, NOW)
    assert clients.seconds_left(NOW + DAY) == 19 * DAY.total_seconds()
    assert clients.ends == NOW + 20 * DAY
    assert clients.warning(NOW + 6 * DAY) is None
    text = clients.warning(NOW + 6 * DAY + timedelta(seconds=1))
    assert text is not None
    assert text.startswith(f"the certificate that the client 10.0.0.2 shows ({NAME}) ends at")
    assert "2026-03-21T00:00:00Z" in text
    assert clients.seconds_left(NOW + 21 * DAY) < 0


def test_a_renewed_one_takes_the_place_of_the_one_before() -> None:
    clients = ClientCertificates()
    clients.show("10.0.0.1", NAME, NOW + DAY, NOW)
    clients.show("10.0.0.1", NAME, NOW + 365 * DAY, NOW)
    assert clients.warning(NOW) is None
    clients.show("10.0.0.1", "commonName=other", NOW + DAY, NOW)
    assert clients.warning(NOW) is not None


def test_one_that_is_not_shown_any_more_is_forgotten_once_another_is() -> None:
    clients = ClientCertificates()
    clients.show("10.0.0.1", NAME, NOW + 3 * DAY, NOW)
    assert clients.seconds_left(NOW + 2 * DAY) == DAY.total_seconds()
    clients.show("10.0.0.2", NAME, NOW + 90 * DAY, NOW + DAY - timedelta(seconds=1))
    assert clients.seconds_left(NOW + DAY) == 2 * DAY.total_seconds()
    clients.show("10.0.0.2", NAME, NOW + 90 * DAY, NOW + DAY)
    assert clients.seconds_left(NOW + DAY) == 89 * DAY.total_seconds()


def test_invented_subjects_take_no_memory() -> None:
    clients = ClientCertificates()
    for number in range(1000):
        clients.show("10.0.0.1", f"commonName={number}", NOW + number * DAY, NOW)
    assert clients.seconds_left(NOW) == (1000 - 64) * DAY.total_seconds()
