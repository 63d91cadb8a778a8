"""What is taken out of a copy of the sources, and which tests must notice.

One entry for each protection that docs/threat-model.md names, under the name of its check. An
edit must stand exactly once in its file, so that this table follows the code or fails. Where
two layers stop the same attack both are taken out: the test is about the attack. Entries stand
in the file of `entries/` that is named like the package they weaken; this one holds none.
"""

from typing import Final

from tests.mutation_security.entries import (
    admission,
    agent,
    audit,
    binding,
    console,
    controller,
    deploy,
    evidence,
    fleet,
    gpuwarden,
    http_api,
    identity,
    kube,
    ledger,
    people,
    rpc,
    scheduling,
    spire,
    support,
    verifier,
)

SECURITY_MUTATIONS: Final = (
    *admission.ENTRIES,
    *agent.ENTRIES,
    *audit.ENTRIES,
    *binding.ENTRIES,
    *controller.ENTRIES,
    *deploy.ENTRIES,
    *evidence.ENTRIES,
    *fleet.ENTRIES,
    *gpuwarden.ENTRIES,
    *console.ENTRIES,
    *http_api.ENTRIES,
    *identity.ENTRIES,
    *kube.ENTRIES,
    *ledger.ENTRIES,
    *people.ENTRIES,
    *rpc.ENTRIES,
    *scheduling.ENTRIES,
    *spire.ENTRIES,
    *support.ENTRIES,
    *verifier.ENTRIES,
)

SAMPLE: Final = (
    "roles",
    "signature",
    "nonce-once",
    "enrolled_gpus",
    "lease-at-each-decision",
    "log-chain",
)
"""Taken out in every test run; `make mutation-security` takes out all."""
