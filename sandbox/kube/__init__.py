"""A Kubernetes API server in memory, as far as gpuwarden and kube-scheduler's part need one.

Insecure and forgetful: for laptops and tests.
"""
