"""Admission of pods: what our webhooks put into them, and the doors that they shut.

All of it is pure but `webhook` and `journal`. Nothing here reads the fleet or the network:
a pod is judged by itself, the wish keys and whether its namespace is enforced. Which GPU it
gets is the business of the binding.
"""
