"""Evidence: its documents, their canonical bytes, digests and signatures. Pure, no IO, no clock."""
