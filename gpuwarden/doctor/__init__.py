"""Checks of an installation: facts are gathered at the edge, pure checks judge them.

What could not be gathered is a check that was not made, never one that passed.
"""
