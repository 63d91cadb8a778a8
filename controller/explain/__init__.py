"""Explain of the controller."""
