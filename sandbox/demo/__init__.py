"""The trust path on one laptop, step by step, each step checked.

A step uses the product from outside only: its gRPC, HTTP and command line, the
hardware that NVML shows, and a rogue agent with a real identity.
"""
