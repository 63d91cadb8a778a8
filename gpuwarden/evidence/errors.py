"""What can be wrong with bytes, before anybody asks what they mean.

Each error is undecidable input, not a denial: the Verifier turns it into the one
reason code of its step. Messages name the place and what was expected, quote at
most 80 characters of the input, escaped, and never hold a key.
"""


class EvidenceError(Exception):
    """Parent of the errors of this package."""


class DecodeError(EvidenceError):
    """The bytes are not the strict JSON document that was expected."""


class CanonicalError(EvidenceError):
    """The value has no canonical form here: a float, a large integer, a foreign type."""


class AlgorithmDeniedError(EvidenceError):
    """The key is of a type, curve or size that may not sign evidence."""


class SignatureInvalidError(EvidenceError):
    """The signature does not verify over the received bytes."""


class NoDocumentError(EvidenceError):
    """The inventory has no document: a fact that the document holds is not known."""
