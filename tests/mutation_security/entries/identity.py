"""Security mutations of `gpuwarden/identity`: SPIFFE IDs, chains, SVIDs and TLS."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import (
    ADMISSION,
    AGENT_TLS,
    CHAIN,
    CLOCKS,
    HOSTILE,
    OUTAGE,
    RPC,
    SERVER_TLS,
    SPIRE_API,
    SVID_WATCHER,
    TUNNEL,
)

ENTRIES: Final = (
    one(
        "client-certificate",
        "gpuwarden/identity/server_credentials.py",
        "require_client_authentication=True",
        "require_client_authentication=False",
        f"{SERVER_TLS}::test_a_hostile_client_ends_inside_the_handshake",
        f"{RPC}::test_a_foreign_authority_does_not_pass_the_handshake",
    ),
    one(
        "controller-in-tls",
        "gpuwarden/identity/tunnel.py",
        "if found != self.expected:",
        "if False:",
        f"{TUNNEL}::test_no_byte_reaches_a_server_that_is_not_the_expected_one",
        f"{AGENT_TLS}::test_a_server_of_another_identity_is_left_before_hello",
    ),
    one(
        "resumed-is-known",
        "gpuwarden/identity/peer.py",
        'resumed=reused != (b"false",),',
        "resumed=False,",
        f"{HOSTILE}::test_a_resumed_session_may_call_nothing",
        f"{SERVER_TLS}::test_a_resumed_session_is_known_as_one",
    ),
    one(
        "dates-of-each-message",
        "gpuwarden/identity/chain.py",
        "    if at > end:",
        "    if False:",
        f"{ADMISSION}::test_the_certificate_counts_to_its_last_moment",
        f"{CLOCKS}::test_a_step_of_the_controllers_wall_clock_revokes_nobody",
    ),
    one(
        "length-of-chains",
        "gpuwarden/identity/chain.py",
        "if len(chain_der) > 1 + MAX_INTERMEDIATES:",
        "if False:",
        f"{HOSTILE}::test_an_overlong_chain_is_refused_before_it_is_verified",
        f"{CHAIN}::test_a_fifth_intermediate_is_refused_before_any_signature_is_computed",
    ),
    one(
        "keys-of-chains",
        "gpuwarden/identity/chain.py",
        "if key.key_size not in _RSA_BITS:",
        "if False:",
        f"{CHAIN}::test_other_keys_are_refused",
    ),
    one(
        "spire-server-identity",
        "gpuwarden/identity/tunnel.py",
        "if found != self.expected:",
        "if False:",
        f"{SPIRE_API}::test_another_workload_of_the_trust_domain",
    ),
    one(
        "dead-watches",
        "gpuwarden/identity/watchdog.py",
        "        if not behind:\n",
        "        if not behind or now:\n",
        f"{OUTAGE}::test_the_watch_of_the_library_dies_in_silence_and_the_svid_watcher_goes_on",
        f"{SVID_WATCHER}::test_a_watch_that_died_in_silence_is_found_by_two_probes",
    ),
    one(
        "expired-svid-of-ours",
        "gpuwarden/identity/svid_watcher.py",
        "return svid if svid is not None and self._wall() < end_of(svid) else None",
        "return svid",
        f"{SVID_WATCHER}::test_an_expired_svid_is_not_served_even_before_the_svid_watcher_has_noticed",
    ),
    one(
        "withdrawn-svid-of-ours",
        "gpuwarden/identity/svid_watcher.py",
        "        if self._dog.withdrawn:\n",
        "        if False:\n",
        f"{SVID_WATCHER}::test_a_redacted_identity_is_dropped_after_the_second_denial",
    ),
    one(
        "private-socket",
        "gpuwarden/identity/tunnel.py",
        "if process != os.getpid():",
        "if False:",
        f"{TUNNEL}::test_another_process_at_the_socket_gets_nothing",
    ),
)
