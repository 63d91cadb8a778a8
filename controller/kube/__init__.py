"""The controller's side towards the Kubernetes API: caches, enrolments, leadership, events.

What is read here narrows trust and never widens it. Nothing in here decides about
evidence or pods; decisions read the caches from memory.
"""
