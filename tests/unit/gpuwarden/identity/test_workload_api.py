"""What the Workload API's library answers and raises, in our own words."""

from types import SimpleNamespace
from typing import Any

from spiffe.errors import PySpiffeError

from gpuwarden.identity.workload_api import WorkloadApiDeniedError, _offer, _translated


def test_an_error_is_one_short_line() -> None:
    told = _translated(PySpiffeError("a\n" + "b" * 300))
    assert str(told) == "a\\n" + "b" * 197
    assert str(_translated(PySpiffeError("short"))) == "short"
    assert not isinstance(told, WorkloadApiDeniedError)


def test_without_a_bundle_of_the_own_trust_domain_there_are_no_roots() -> None:
    svid: Any = SimpleNamespace(spiffe_id="spiffe://example.org/a", private_key=1, cert_chain=[])
    assert _offer(svid, None, ("spiffe://example.org/a",)).roots == ()
