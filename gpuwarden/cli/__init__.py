"""The program `gpuwarden`: shows the fleet, explains decisions, verifies logs, checks configs.

Commands are imported when they run. What nodes say about themselves is escaped
before it reaches a terminal.
"""
