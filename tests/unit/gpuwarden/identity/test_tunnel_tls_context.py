"""What a connection of ours is held to, before anybody dials with it."""

import ssl
from dataclasses import replace

from gpuwarden.identity.tunnel import client_context
from tests.builders.ca import SpiffeCa

AGENT = "spiffe://example.org/gpuwarden/agent/node-a"


def test_a_server_must_be_vouched_for_and_has_no_host_name() -> None:
    context = client_context(SpiffeCa().svid(AGENT))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is False
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_each_root_of_the_bundle_vouches() -> None:
    svid = SpiffeCa().svid(AGENT)
    both = replace(svid, roots=(*svid.roots, *SpiffeCa().roots))
    assert len(client_context(both).get_ca_certs()) == 2


def test_the_leaf_is_the_first_of_the_chain() -> None:
    svid = SpiffeCa(intermediate=True).svid(AGENT)
    assert (len(svid.chain), svid.leaf) == (2, svid.chain[0])
    assert svid.not_after == svid.chain[0].not_valid_after_utc
