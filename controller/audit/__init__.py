"""The audit log of this replica: records become lines, lines become durable.

`log` is what the rest of the controller sees; `opening` puts the real one together.
Nothing here decides about nodes or pods.
"""
