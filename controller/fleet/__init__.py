"""What the controller knows about nodes: enrollment, claims, trust over time, the fleet.

It must not verify evidence (see `controller.verifier`) nor know who reads it.
"""
