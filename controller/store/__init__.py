"""Where pins, denials and instance ids outlive the process: SQLite on this machine.

Implements the stores that `controller.fleet` declares. Nothing here decides about trust;
whatever cannot be read or written is an error, never an empty answer.
"""
