"""The gRPC edge: who may call, what agents and readers get, and for how long.

Decides nothing about evidence, nodes or pods; the Verifier, the registry and the
scheduling rules do. The only package of the controller that imports grpc.
"""
