"""Web of the controller."""
