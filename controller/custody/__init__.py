"""The way of one pod to its GPUs: wished, reserved, bound, kubelet, NVML; who says so, and when.

For people who ask. Nothing is decided by it, and nothing is changed.
"""
