"""Placement: what a pod asks for, which nodes can give it, and kube-scheduler's extender API.

Reads the verified fleet and the policy, never Kubernetes objects for trust. All of it
is pure but `extender` and `serving_tls`.
"""
