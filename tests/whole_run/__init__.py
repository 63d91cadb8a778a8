"""A run of tests that is held to what was collected: nothing is lost on the way, and what was
left out is named with a reason that is known.
"""
