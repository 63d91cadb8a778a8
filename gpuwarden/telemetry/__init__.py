"""Logs, metrics and traces: what both processes say about themselves.

`names` lists every metric and log event once; `logs`, `metrics` and `tracing` are the
rims that write them. No module here decides anything.
"""
