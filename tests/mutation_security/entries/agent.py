"""Security mutations of the agent: which challenges it answers, what it says of its pods."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import AGENT_CHALLENGE, RUNNING_PODS

ENTRIES: Final = (
    one(
        "controller-in-challenges",
        "agent/challenge.py",
        "if signer != controller:",
        "if False:",
        f"{AGENT_CHALLENGE}::test_another_workload_of_the_trust_domain_is_not_the_controller",
    ),
    one(
        "nonce-once-for-the-agent",
        "agent/challenge.py",
        "    if document.nonce in expected.used_nonces or document.spare_nonce in",
        "    if document.nonce == '' and document.spare_nonce in",
        f"{AGENT_CHALLENGE}::test_a_nonce_is_good_once_per_stream",
    ),
    one(
        "pods-of-the-node",
        "agent/claims/pods.py",
        "        if first is None or _pod(first) is not None or os.getpid() == int(_INIT):\n",
        "        if False:\n",
        f"{RUNNING_PODS}::test_a_reader_inside_a_pod_of_its_own_sees_nothing_of_the_node",
    ),
)
