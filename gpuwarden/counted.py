"""Numbers of things as people write them. Pure."""


def counted(count: int, name: str) -> str:
    """How many there are: `1 node`, `2 nodes`; `name` takes an s at its end."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
