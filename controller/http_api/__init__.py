"""The HTTP API for people and tools: devices, nodes, reservations, and a pod's own confirmation.

One table of operations (`operations`) is behind routes, rights and the OpenAPI document. Reading
changes nothing; the one call that writes confirms what the ledger holds already.
"""
