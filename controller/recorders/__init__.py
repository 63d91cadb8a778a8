"""Recorders of the controller."""
