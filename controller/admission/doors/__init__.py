"""The doors past us to a GPU, one module per family, each door with its own reason code.

A door is a pure function from a `Case` to refusals. Which pods they are shut for: every pod
of an enforced namespace, and every guarded pod anywhere.
"""
