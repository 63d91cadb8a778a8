"""Wiring of the controller."""
