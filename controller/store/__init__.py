"""Where pins, denials, instance ids and reservations outlive the process: SQLite on this machine.

Implements the stores that `controller.fleet` and `controller.ledger` declare. Nothing here decides
about trust; whatever cannot be read or written is an error, never an empty answer.
"""
