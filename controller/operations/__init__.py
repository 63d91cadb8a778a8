"""Readiness, quarantine across replicas, operators' acts, and what the audit log restores."""
