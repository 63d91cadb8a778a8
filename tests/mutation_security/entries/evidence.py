"""Security mutations of `gpuwarden/evidence`: the form of documents, digests and the envelope."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import DECODER, ROUNDS, RPC, VERIFIER

ENTRIES: Final = (
    one(
        "signature",
        "gpuwarden/evidence/envelope.py",
        "    key = verifying_key(certificate)\n    message",
        "    return\n    key = verifying_key(certificate)\n    message",
        f"{VERIFIER}::test_any_flipped_bit_is_refused",
        f"{RPC}::test_signed_with_another_key",
        f"{RPC}::test_a_challenge_relayed_to_another_node_proves_nothing",
    ),
    one(
        "type-under-the-signature",
        "gpuwarden/evidence/envelope.py",
        'kind = payload_type.encode("utf-8")',
        'kind = b"" if payload_type else b"-"',
        f"{ROUNDS}::test_the_payload_type_is_under_the_signature",
    ),
    one(
        "signature-over-every-byte",
        "gpuwarden/evidence/envelope.py",
        "(len(kind), kind, len(payload), payload)",
        "(len(kind), kind, len(payload), payload[:-1])",
        "tests/fuzz/test_fuzz_targets.py::test_a_short_deterministic_run_finds_nothing",
    ),
    one(
        "no-crash-by-bytes",
        "gpuwarden/evidence/strict_json.py",
        "    except UnicodeDecodeError as error:",
        "    except ZeroDivisionError as error:",
        "tests/fuzz/test_fuzz_targets.py::test_a_short_deterministic_run_finds_nothing",
        "tests/fuzz/test_fuzz_targets.py::test_mutations_find_nothing",
    ),
    one(
        "repeated-keys",
        "gpuwarden/evidence/strict_json.py",
        "if len(result) != len(pairs):",
        "if False:",
        f"{DECODER}::test_every_duplicate_key_is_refused",
    ),
    one(
        "nesting",
        "gpuwarden/evidence/strict_json.py",
        "    _refuse_depth(data)\n",
        "    len(data)\n",
        "tests/unit/gpuwarden/evidence/test_strict_json.py::test_deep_nesting_does_not_reach_the_parser",
    ),
    one(
        "level-in-the-hash",
        "gpuwarden/evidence/class_document.py",
        "level=str(level),",
        'level="L0",',
        f"{DECODER}::test_every_part_of_the_context_changes_the_class_hash",
    ),
)
