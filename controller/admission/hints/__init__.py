"""Hints: what a pod tells the scorer, and what of its answer is put into the pod."""
