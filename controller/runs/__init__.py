"""Runs of jobs: how long pods with GPUs ran, on what, beside whom; told to the scorer.

A scorer learns from them (docs/hints.md). Must not decide anything about pods or nodes.
"""
