"""Logs, metrics and spans of both processes.

`names` lists every metric, log event and span once; `logs`, `metrics` and `tracing` write them.
No module here decides anything.
"""
