"""A simulated fleet: thousands of agents without GPUs against a real controller.

The agents are the real ones from the Attester outwards: signing, stream and link
machines, tunnel, gRPC. Made up are the hardware, the SVIDs and what happens to nodes.
"""
