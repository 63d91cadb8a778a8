"""Recorders: logs, metrics, audit records and Events of each subject; they decide nothing."""
