"""A stand-in for NVIDIA's management library: the C source, its build, and its scenarios."""
