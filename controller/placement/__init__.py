"""Placement of the controller."""
