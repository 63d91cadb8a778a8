"""Settings of gRPC's C core, which reads them when `grpc` is imported or first used.

Imported first by every program. A value that is set already stays.

The core writes nothing to standard error: its own lines are no structured log, and some repeat
what a peer sent.

It has no part in a fork. Nothing here forks and goes on with gRPC, but a program may be started
by a fork (one that gets another user, for example): the core would start its threads in the
child before that becomes the program, and they crash it (https://github.com/grpc/grpc/issues/43055).
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
