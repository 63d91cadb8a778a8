"""The Verifier and what relies on it: accepts evidence, answers the scheduler, keeps the log."""
