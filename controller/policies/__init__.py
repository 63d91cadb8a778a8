"""Policies of the controller."""
