"""What both processes must agree on, and the command line for people.

A module belongs here when agent and controller both use it, or when it is one
half of a pair (sign/verify, encode/decode) whose other half the other process
uses. It imports neither `agent` nor `controller`.
"""

__version__ = "0.1.0"
