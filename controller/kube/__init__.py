"""The controller's side towards the Kubernetes API: caches, stores, leader election, Events.

What is read here narrows trust and never widens it. Must not decide about evidence or pods.
"""
