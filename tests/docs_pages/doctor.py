"""Makes docs/doctor.md from the checks themselves; pure, writes no file."""

from collections.abc import Iterator
from typing import Final

from gpuwarden.doctor.catalog import INSTALLED, NOT_YET
from gpuwarden.doctor.check import Check

_HEAD: Final = """\
# Checking an installation

Generated from the checks by `make docs`; do not edit.

`gpuwarden doctor` shows of each fault what it saw, what it expected, one command, and where to read
more. It changes nothing: the two pods that it creates with `dryRun=All` are not stored.

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
    repair    kubectl -n gpuwarden-system get pods -l \\
              app.kubernetes.io/component=agent --field-selector \\
              spec.nodeName=gpu-a2
    page      docs/doctor.md#agents
```

In commands, replace words in capitals, such as NODE, and `deploy/helm/gpuwarden` by your chart.
What Helm has installed, Helm repairs.

| outcome | meaning |
|---|---|
| passed | it is as it should be |
| warning | it works, but read the text |
| failed | it is not as it must be; the command exits with 3 |
| not checked | a fact could not be read, or there is nothing to check. **It did not pass** |

## Who is asked

- **The Kubernetes API**, by your [kubeconfig](workstation.md), or in a pod by its service account.
- **Every replica of the controller**, the same way, or by `--server` ([whom that
    reaches](audit-log.md#read-it)). A check fails if it fails on one replica; `seen` names those
    that differ or were not asked.
- **The audit log** of this machine, if there is one (`--audit-log`). Above 256 MiB use
    [`gpuwarden audit verify`](reference/audit.md).

In a controller's pod only this replica is asked, and what its service account may not read is not
checked. No test runs `kubectl` here: in a pod a test runs other [commands](kind.md#look).

```console
$ kubectl -n gpuwarden-system exec gpuwarden-controller-0 -- gpuwarden doctor
```

## Rights

`kubectl apply -k deploy/doctor` lets the service account `gpuwarden-doctor` read what is checked,
no Secrets. The dry runs also need the right to create pods in one namespace (`--dry-run-namespace`,
by default the first enforced one), which the roles leave out: it is the right to run pods. To ask
controllers you must be an [inspector](authorization.md). `helm test` brings its own rights.

## Output for programs

`-o json` and `-o yaml` give one object. Keys and ids are stable; texts are for people. `-o name`
gives the ids of failed checks. Exit codes: [every command](reference/cli.md#exit-codes).

- `success` is whether no check failed, `counts` the number of checks by outcome.
- `replicas[]` have `name`, whether one `answers`, and `why` not.
- `groups[]` have `name`, `title` and `checks`.
- `checks[]` have `id`, `title` (what holds if it passes), `outcome`, `seen` (or why it was not
    checked) and `page`; after a warning or a failure `expected` and `command`, else empty.
"""


def doctor_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *_checks()])


def _checks() -> Iterator[str]:
    asked = [one.id for group in NOT_YET for one in group.checks]
    links = ", ".join(f"[`{one}`](#{one})" for one in asked)
    yield f"Checks of `--pre`: {links}.\n"
    by_title: dict[str, dict[str, Check]] = {}
    for group in (*INSTALLED, *NOT_YET):
        by_title.setdefault(group.title, {}).update({one.id: one for one in group.checks})
    for title, checks in by_title.items():
        yield f"## Checks: {title}\n"
        yield from map(_section, checks.values())


def _section(check: Check) -> str:
    title = check.title
    if not title.startswith("gpuwarden"):  # a name, which is never capitalized
        title = title[0].upper() + title[1:]
    headed = f"**[{title}]({check.more}).**" if check.more else f"**{title}.**"
    return f"### {check.id}\n\n{' '.join(filter(None, (headed, check.about)))}\n"
