"""Enrollments, quarantine entries and instance IDs in SQLite, where there is no Kubernetes API.

Must not decide about trust. What cannot be read or written is an error, never an empty answer.
"""
