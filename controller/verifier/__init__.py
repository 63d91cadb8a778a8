"""Appraises evidence: 20 ordered steps, of which this package decides 1 to 18.

Everything here is pure: received bytes, facts about the session, snapshots, policy
and `now` go in, a value comes out. Cheap before costly, authenticity before meaning;
the first failing step gives the one reason code. It must not read a clock, wait, draw
random numbers, log or write. `controller/verifier/verifier.py` holds the order.

What the caller (`controller.rpc`) does for each stream:

1. Collect `StreamFacts`, take the `Snapshots` (store and directory read at least once
   before), call `appraise_stream` with the bytes of Hello. Refused: report the refusal
   to the registry if it names a node, send the Verdict, end the stream.
2. Draw ids and nonces, `build_challenge`, sign and send it, `ChallengeStore.issue`.
3. Per message: `ChallengeStore.pop` **first** (a nonce is used up by being presented),
   keep the returned store, then call `appraise_message` with what it gave.
4. `Refused`: report it to the registry at once; no grant to wait for. Effect
   quarantine: also write the record's quarantine entry, so that every replica agrees.
   `stream` is the state to go on with, None ends the stream.
5. `FailureNoticeAccepted`: report it at once, go on with its `stream`, send a challenge.
6. `Accepted` with an `enrollment` change: `enrollment.write(store, old, new)`, then
   appraise the same message again on the new snapshots, also after a lost race. Enrolled GPUs
   come before the audit record because an enrolled GPU alone trusts nobody; the second look
   is what refuses both of two nodes that enrolled one GPU at the same moment.
7. `Accepted` without one: step 19, if `FleetRegistry.needs_grant` wait until the audit
   record is durable (else AUDIT_UNAVAILABLE: nothing is swapped); step 20,
   `FleetRegistry.accept`; go on with its `stream`.
"""
