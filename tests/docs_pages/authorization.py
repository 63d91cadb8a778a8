"""docs/authorization.md, made from the table of allowed callers. Pure."""

from controller.access import ALLOWED_CALLERS, CallerKind


def authorization_page() -> str:
    """The whole page."""
    kinds = tuple(CallerKind)
    lines = [
        "# Who may call what over gRPC",
        "",
        "Generated from `controller/access.py`; do not edit. Everything that is not",
        "listed is refused with `ROLE_DENIED`. `local` is the unix socket of the controller",
        "(mode 0600), `none` a caller without a certificate that counts; the other kinds come",
        "from the SPIFFE ID of the client certificate (`…/gpuwarden/<kind>/<name>`).",
        "",
        "| method | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for method, allowed in ALLOWED_CALLERS.items():
        marks = ("yes" if kind in allowed else "no" for kind in kinds)
        lines.append(f"| `{method}` | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
