"""The Attester process of a GPU node: reads GPUs, signs what it read, reports to every controller.

It talks to the controller replicas and to its local Workload API and nothing else,
writes only its state directory, and decides nothing about trust.
"""
