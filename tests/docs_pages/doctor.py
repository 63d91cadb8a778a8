"""Makes docs/doctor.md from the checks themselves; pure, writes no file."""

from collections.abc import Iterator
from typing import Final

from gpuwarden.doctor.catalog import INSTALLED, NOT_YET
from gpuwarden.doctor.check import Check, Group

_HEAD: Final = """\
# Checking an installation

Generated from the checks by `make docs`; do not edit.

`gpuwarden doctor` says for each fault what it saw, what it expected, one command, and where to
read on. It changes nothing: it reads objects, asks which rights you have, and creates two pods
with `dryRun=All`, which are not stored.

```console
$ gpuwarden doctor --pre                     # before the installation
$ gpuwarden doctor                           # after it
$ gpuwarden doctor --wait 5m                 # repeat until no check fails
$ gpuwarden doctor -o json                   # for programs
```

```
GPU nodes
  passed       GPU nodes have their label: 2 nodes
  failed       an agent is ready on every GPU node
    seen      none that is ready on gpu-a2
    expected  an agent that is ready on every GPU node
    mend      kubectl -n gpuwarden-system describe pods -l \\
              app.kubernetes.io/component=agent --field-selector \\
              spec.nodeName=gpu-a2
    page      docs/doctor.md#agents
```

## Outcomes

| outcome | meaning |
|---|---|
| passed | it is as it should be |
| warning | it works, and you should know something; does not change the exit code |
| failed | it is not as it must be; the command exits with 3 |
| not checked | a fact could not be read, and it says why; or there is nothing to check |

What could not be read never passes. Look at the last line: how many checks were not made is part
of the answer.

## Who is asked

- **The Kubernetes API**, by the [kubeconfig of every command](workstation.md), or the service
    account of the pod. Every call ends after `--timeout`.
- **A controller**, by the same kubeconfig, or by `--server` and the [other
    options](reference/cli.md). One replica answers: repeat checks of certificates, SVIDs, log and
    extender with another `--server`.
- **The audit log** of this machine: `--audit-log`, by default `/var/lib/gpuwarden/audit`. More
    than 256 MiB are not read: use [`gpuwarden audit verify`](reference/audit.md).

In a controller's pod the service account may read little; what it may not read is not checked:

```console
$ kubectl -n gpuwarden-system exec gpuwarden-controller-0 -- gpuwarden doctor
```

## Rights

`kubectl apply -k deploy/doctor` creates a ClusterRole and a Role with what is read, and binds
both to the service account `gpuwarden-doctor`. They hold no secrets. The dry runs need the right
to create pods in one namespace (`--dry-run-namespace`, by default the first enforced one), which
they do not give: it is the right to run pods there. `helm test` brings its own rights, for the
time of the test.

## Output for programs

`-o json` and `-o yaml` give one object. Keys and ids are stable; texts are for people.

| key | value |
|---|---|
| `success` | whether no check failed |
| `counts` | number of checks by outcome |
| `groups[].name`, `.title`, `.checks` | the groups below |
| `checks[].id` | the id below |
| `checks[].title` | what holds where it passes |
| `checks[].outcome` | `passed`, `warning`, `failed` or `not checked` |
| `checks[].seen` | what was seen, or why it was not checked |
| `checks[].expected`, `.command` | empty unless it is a warning or failed |
| `checks[].page` | this page, at the check |

`-o name` gives the ids of the checks that failed. Exit codes are those of [every
command](reference/cli.md#exit-codes). In commands, words in capitals such as OVERLAY, NODE and
TRUST_DOMAIN are yours to fill in.
"""


def doctor_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *_checks()])


def _checks() -> Iterator[str]:
    yield _table("Checks after installation", INSTALLED)
    yield _table("Checks before installation (`--pre`)", NOT_YET)
    shown: set[str] = set()
    yield "## Each check\n"
    for group in (*INSTALLED, *NOT_YET):
        for check in group.checks:
            if check.id not in shown:
                shown.add(check.id)
                yield _section(check)


def _table(title: str, groups: tuple[Group, ...]) -> str:
    rows = (
        f"| {group.title} | {', '.join(f'[`{one.id}`](#{one.id})' for one in group.checks)} |"
        for group in groups
    )
    return "\n".join([f"## {title}", "", "| group | checks |", "|---|---|", *rows, ""])


def _section(check: Check) -> str:
    title = check.title
    if not title.startswith("gpuwarden"):  # a name, which is never capitalized
        title = title[0].upper() + title[1:]
    parts = [f"**{title}.**", check.about]
    if check.more:
        parts.append(f"[More]({check.more}).")
    return f"### {check.id}\n\n{' '.join(parts)}\n"
