"""Constructs the parts of a controller and connects them; the one place that knows constructors."""
