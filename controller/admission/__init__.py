"""Admission of pods: what our webhooks put into them, and the bypass checks that they shut.

All of it is pure but `webhook` and `recorder`. Nothing here reads the fleet or the network:
a pod is judged by itself, the requirement keys and whether its namespace is enforced. Which GPU it
gets is the business of the binding.
"""
