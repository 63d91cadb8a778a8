"""Calls of the Kubernetes API, caches that lists and watches keep, and leader election."""
