"""docs/authorization.md, made from the table of allowed callers. Pure."""

from controller.access import ALLOWED_CALLERS, CallerKind
from controller.people.rights import CLUSTER_ROLES


def authorization_page() -> str:
    """The whole page."""
    kinds = tuple(CallerKind)
    lines = [
        "# Who may call what over gRPC",
        "",
        "A method that is not listed is refused with `ROLE_DENIED` for every caller. This page is",
        "generated from `controller/access.py`; do not edit it.",
        "",
        "- `agent`, `controller`, `inspector` and `operator` come from the SPIFFE ID of the client",
        "  certificate (`…/gpuwarden/<kind>/<name>`).",
        "- `inspector` and `operator` are also people with a kubeconfig who have the role's right:",
        *(
            f"  verb `{right.verb}` on `{right.resource}` in the API group `{right.group}`"
            f" (ClusterRole `{role}`)."
            for right, role in CLUSTER_ROLES.items()
        ),
        "- `tenant` is a person with a kubeconfig and without the role. Answers are about one pod",
        "  that the person may get, or the pods of a namespace in which the person may `get pods`.",
        "- `local` is a caller on the controller's unix socket (mode 0600).",
        "- `none` is a caller without a valid client certificate or token.",
        "",
        "[The page about workstations](workstation.md) shows how to give people these rights.",
        "",
        "| method | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for method, allowed in ALLOWED_CALLERS.items():
        marks = ("yes" if kind in allowed else "no" for kind in kinds)
        lines.append(f"| `{method}` | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
