"""Admission of pods: what the webhooks add to them, and the bypass checks that they must pass.

Must not read the fleet or the network: a pod is judged by itself, by the requirement keys and by
whether its namespace is enforced. Which GPU it gets, `controller.binding` decides.
"""
