"""The audit log as bytes: what a record looks like and how a chain of them is verified.

Shared by the controller, which writes it, and by the CLI, which verifies it.
"""
