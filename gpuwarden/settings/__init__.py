"""Typed settings of both processes, and how they are read: flag > environment > file > default."""
