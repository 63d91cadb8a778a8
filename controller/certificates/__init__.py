"""Certificates that gpuwarden manages itself: authorities, leaves, and what follows on what."""
