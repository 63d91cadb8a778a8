"""Explanations for people: the allocation trace of a pod, why a node is eligible or not."""
