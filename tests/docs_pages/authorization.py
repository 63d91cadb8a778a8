"""docs/authorization.md, made from the table of allowed callers. Pure."""

from controller.access import ALLOWED_CALLERS, CallerKind
from controller.people.rights import CLUSTER_ROLES


def authorization_page() -> str:
    """The whole page."""
    kinds = tuple(CallerKind)
    lines = [
        "# Who may call what over gRPC",
        "",
        "Generated from `controller/access.py`; do not edit. A caller with an empty cell is",
        "refused with `ROLE_DENIED`, and so is everybody at a method that is not listed.",
        "",
        "| caller | who that is |",
        "|---|---|",
        "| `agent`, `controller`, `inspector`, `operator` | SPIFFE ID `…/gpuwarden/KIND/NAME` |",
        *(
            f"| `{role.removeprefix('gpuwarden-')}` also | a person with a kubeconfig and the right"
            f" `{right.verb}` on `{right.resource}` in the API group `{right.group}`"
            f" (ClusterRole `{role}`) |"
            for right, role in CLUSTER_ROLES.items()
        ),
        (
            "| `tenant` | a person with a kubeconfig without such a right, about a pod that they"
            " may get, or the pods of a namespace in which they may `get pods` |"
        ),
        "| `local` | whoever opens the controller's unix socket (mode 0600) |",
        "| `none` | a caller without a valid client certificate or token |",
        "",
        "To give people these rights, see [workstation](workstation.md#let-people-in).",
        "",
        "| method | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for method, allowed in ALLOWED_CALLERS.items():
        marks = ("yes" if kind in allowed else "" for kind in kinds)
        lines.append(f"| `{method}` | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
