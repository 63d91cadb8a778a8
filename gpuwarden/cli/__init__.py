"""The program `gpuwarden`: shows the fleet, explains decisions, verifies logs, checks settings.

A command is imported when it runs. Text from nodes is escaped before it reaches a terminal.
"""
