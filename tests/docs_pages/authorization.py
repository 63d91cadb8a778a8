"""docs/authorization.md, made from the table of allowed callers. Pure."""

from controller.access import ALLOWED_CALLERS, CallerKind
from controller.people.rights import CLUSTER_ROLES


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
        "- `inspector` and `operator` are also people with a kubeconfig who have the role's right:",
        *(
            f"  verb `{right.verb}` on `{right.resource}` in the API group `{right.group}`"
            f" (ClusterRole `{role}`)."
            for right, role in CLUSTER_ROLES.items()
        ),
        "- `tenant` is a person with a kubeconfig and without the role. Each answer is about the",
        "  pods of one namespace in which the person may `get pods`, or the one pod that the",
        "  person may get. Other callers get `ROLE_DENIED` with the rule that is missing.",
        "- `local` is a caller on the controller's unix socket (mode 0600).",
        "- `none` is a caller without a valid client certificate or token.",
        "",
        "[The command line on a workstation](workstation.md) shows how people come in and how to",
        "give them these rights.",
        "",
        "| method | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for method, allowed in ALLOWED_CALLERS.items():
        marks = ("yes" if kind in allowed else "no" for kind in kinds)
        lines.append(f"| `{method}` | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
