"""Enough file descriptors for a fleet: the limit is raised, and how a fleet fits below it.

`processes_for` is pure; `raise_limit` changes this process's limit, which its children inherit.
"""

import resource
from typing import Final

MAX_NODES: Final = 2000
"""Nodes of one process, whatever the limit: one event loop turns for all of them."""
PER_NODE: Final = 8
"""A stream takes four descriptors in the agent's process, while its SVID rotates eight."""
PER_STREAM: Final = 2
"""Descriptors in the controller: one connection, while the SVID rotates two."""
SPARE: Final = 256
"""Files, pipes, libraries and listeners of any of the processes."""


class TooFewDescriptorsError(Exception):
    """A fleet of this size does not fit below the limit; says what would."""


def raise_limit() -> int:
    """Raise the soft limit (RLIMIT_NOFILE) to the hard one; returns what holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def processes_for(nodes: int, limit: int) -> int:
    """How many processes a fleet is divided among, each of which may open `limit` descriptors.

    Raises TooFewDescriptorsError where the controller, which has all streams, may not.
    """
    wanted = nodes * PER_STREAM + SPARE
    if limit < wanted:
        most = max(0, (limit - SPARE) // PER_STREAM)
        raise TooFewDescriptorsError(
            f"{nodes} nodes need {wanted} open files in the controller, and this machine allows"
            f" {limit} (hard limit, `ulimit -Hn`); raise it, or simulate at most {most} nodes"
        )
    fitting = min(MAX_NODES, (limit - SPARE) // PER_NODE)
    return -(-nodes // fitting)
