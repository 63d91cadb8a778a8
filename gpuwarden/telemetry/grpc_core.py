"""Keeps gRPC's C core from writing to standard error. Imported first by every program.

The core's own lines are no structured log, and some repeat what a peer sent. It reads
GRPC_VERBOSITY once, when `grpc` is imported; a value that is set already stays.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
