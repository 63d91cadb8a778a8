"""The HTTP API: who calls, what was asked for, and what is shown."""
