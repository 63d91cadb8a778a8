"""The laptop cluster: stand-ins for SPIRE and the GPUs, and a launcher for the real programs.

Everything here is insecure on purpose and warns when it starts. It is in no image of the
product, and neither process may import it; the image for evaluations holds `evaluation` and `nvml`.
"""
