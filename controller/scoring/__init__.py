"""Learned scores: how well each GPU type suits a type of job, from the run times of earlier jobs.

Must not decide where a pod may run: a score is a hint.
"""
