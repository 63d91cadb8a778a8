"""What the controller knows about nodes: pins, claims, trust over time, and the whole fleet.

It must not verify evidence (see `controller.verifier`) nor know who reads it.
"""
