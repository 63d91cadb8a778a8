"""docs/authorization.md, made from the table of allowed callers. Pure."""

from controller.access import ALLOWED_CALLERS, CallerKind


def authorization_page() -> str:
    """The whole page."""
    kinds = tuple(CallerKind)
    lines = [
        "# Who may call what over gRPC",
        "",
        "This table lists which caller may call which gRPC method. A method that is not listed is",
        "refused with `ROLE_DENIED` for every caller. The page is generated from",
        "`controller/access.py`; do not edit it.",
        "",
        "- `agent`, `controller`, `inspector` and `operator` come from the SPIFFE ID of the client",
        "  certificate (`…/gpuwarden/<kind>/<name>`).",
        "- `local` is a caller on the controller's unix socket (mode 0600).",
        "- `none` is a caller without a valid client certificate.",
        "",
        "| method | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for method, allowed in ALLOWED_CALLERS.items():
        marks = ("yes" if kind in allowed else "no" for kind in kinds)
        lines.append(f"| `{method}` | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
