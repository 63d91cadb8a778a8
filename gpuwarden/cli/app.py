"""The command tree, and the one place where the end of a command becomes an exit code.

Commands are registered by name, so that running one does not import the others. Their help
texts are here for the same reason.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from cyclopts import App, CycloptsError

from gpuwarden.cli.exit_codes import MEANING, CliError, ExitCode
from gpuwarden.cli.text.help_text import HelpFormatter
from gpuwarden.cli.text.terminal import STANDARD_INPUT, WIDTH, flowed, shown

PROGRAM: Final = "gpuwarden"
_PLUGIN: Final = "kubectl-gpuwarden"
_PACKAGE: Final = "gpuwarden.cli.commands"
_HELP: Final = (
    "Show the fleet of attested GPUs, explain decisions, accept and quarantine nodes,"
    " verify audit logs, check configurations."
)
_GROUPS: Final = {
    "node": "Show one node; accept, quarantine or release it.",
    "gpu": "Show one GPU and its history.",
    "reservation": "Release a reserved GPU.",
    "class": "Show and compare attestation classes.",
    "protection": "Check what protecting GPU nodes would do.",
    "explain": "Explain why a node or a pod is in its state.",
    "audit": "Verify audit logs, or begin a new one; needs no controller.",
    "export": "Show and replay records that could not be exported.",
    "config": "Check configurations; needs no controller.",
}
"""A plural lists (`nodes`); a singular with a verb is about one (`node show`)."""


@dataclass(frozen=True, slots=True)
class Command:
    """The place of a command (`module:function`), and its help: summary, example, details."""

    place: str
    summary: str
    example: str
    details: str = ""

    @property
    def epilogue(self) -> str:
        """Text below the parameters in help."""
        return "\n\n".join(filter(None, (self.details, f"Example: {self.example}")))


COMMANDS: Final[Mapping[str, Command]] = {
    "status": Command(
        "status:status",
        "Show the controller and its fleet in numbers; exits with 3 if something is wrong.",
        "gpuwarden status",
        "Wrong is: nothing is decided yet, or agents accuse an audit log. Warnings and nodes that"
        " are not eligible do not change the exit code.",
    ),
    "nodes": Command(
        "nodes:nodes",
        "List the nodes of the fleet, once or as they change.",
        "gpuwarden nodes --state quarantined --state revoked",
        "With --watch, each change is a line with its time.",
    ),
    "node show": Command(
        "nodes:show",
        "Show one node, its GPUs, their use and its enrollment.",
        "gpuwarden node show gpu-a1",
    ),
    "node accept": Command(
        "node_orders:accept",
        "Accept the hardware that a node shows, and end its quarantine.",
        'gpuwarden node accept gpu-a1 --reason "RMA 4711: GPU 1 replaced"',
        "Shows what would change and asks first. The next evidence makes the node eligible again.",
    ),
    "node quarantine": Command(
        "node_orders:quarantine",
        "Quarantine a node until an operator releases it; running pods stay.",
        'gpuwarden node quarantine gpu-a1 --reason "INC 88: unknown process on GPU 0"',
    ),
    "node release": Command(
        "node_orders:release",
        "Release a node from quarantine, or its GPUs from faults; its enrollment stays.",
        'gpuwarden node release gpu-a1 --reason "INC 88: explained"',
        "Use it where the quarantine was wrong or its cause is gone. If the node still shows other"
        " hardware than the enrolled one, its next evidence quarantines it again. Where the node is"
        " not quarantined, it ends the faults (XIDs) of its GPUs, for example after a reset that"
        " the agent could not see.",
    ),
    "gpus": Command(
        "gpus:gpus",
        "List every GPU: free, or who has it.",
        "gpuwarden gpus --state free --class h100-prod",
    ),
    "gpu show": Command(
        "gpu:show",
        "Show where a GPU has been and who has had it, by audit logs; exits with 3 if unknown.",
        "gpuwarden gpu show 1654223000011",
        "Asks every replica that the way leads to, and merges what their logs have of the GPU: the"
        " kubeconfig leads to all, a name to all its addresses, the socket to one. Each log has"
        " what its replica saw; the answer names the logs that were not read, and exits with 5 if"
        " only they could know the GPU. A replica reads the last GiB of its log. --store reads logs"
        " on disk instead. Serial, slot and machine are known as long as the evidence is kept."
        " Times are of the controllers' clocks.",
    ),
    "use": Command(
        "use:use",
        "List GPUs that are used without a reservation, and reserved GPUs that nobody uses.",
        "gpuwarden use --namespace team-a",
        "A reserved GPU is idle while no process of a pod that holds it runs on it; it is listed"
        " after 15 minutes. GPU time counts between two reports of a node, and a MIG device counts"
        " as a GPU.",
    ),
    "top": Command(
        "top:top",
        "Show nodes, GPUs and what needs attention, again and again until Ctrl-C.",
        "gpuwarden top --interval 5",
        "Nodes that are not eligible come first. Without a terminal it prints once.",
    ),
    "events": Command(
        "events:events",
        "Show the last events of the audit logs, and follow them as they grow.",
        "gpuwarden events --follow --kind reservation --kind node",
        "Asks every replica that the way leads to, as `gpu show` does, and names the logs that are"
        " not read. A replica that goes away while it is followed is asked again, and nothing of"
        " it is lost. --store reads a log on disk instead. Checkpoints, unchanged rounds and"
        " accounts are left out, unless --kind asks for them.",
    ),
    "why": Command(
        "why:why",
        "Explain in few lines why a pod waits, and the fix; exits with 3 where it cannot go on.",
        "gpuwarden why team-a/train-0",
        "Names the reason that holds the pod back. `explain pod` has all of it.",
    ),
    "reservations": Command(
        "reservations:reservations",
        "List who holds which GPU.",
        "gpuwarden reservations --namespace team-a",
    ),
    "reservation release": Command(
        "reservations:release",
        "Release a GPU of a silent node from a pod that has ended.",
        'gpuwarden reservation release GPU-5d2b0c1e --pod team-a/train-0 --reason "node is gone"',
        "Use it for a node that is gone or does not answer. Make sure first that nothing of the pod"
        " still runs there. Refused while the pod exists and while the node shows the pod. Exits"
        " with 0 if the reservation does not hold the GPU any more.",
    ),
    "classes": Command(
        "classes:classes",
        "List the classes that nodes have and that policy names.",
        "gpuwarden classes -o wide",
    ),
    "class show": Command(
        "classes:show", "Show the document behind a class.", "gpuwarden class show h100-prod"
    ),
    "class diff": Command(
        "classes:diff_",
        "Show where two classes differ; exits with 3 if they do.",
        "gpuwarden class diff 123c1510 9f86d081",
    ),
    "protection check": Command(
        "protection:check",
        "List the pods that the taint of managed nodes evicts; exits with 3 if there are any.",
        "gpuwarden protection check gpu-a1",
        "Run it before you set the taint gpuwarden.dev/managed:NoExecute. Looks at the pods that"
        " are bound now: what is created later is not known.",
    ),
    "explain node": Command(
        "explain:node",
        "Explain why a node is or is not eligible, and what to do.",
        "gpuwarden explain node gpu-a1",
    ),
    "explain pod": Command(
        "explain:pod",
        "Explain which GPUs a pod required and got, or why it waits; exits with 3 if it is wrong.",
        "gpuwarden explain pod team-a/train-0",
        "Compares what the pod requires, what is reserved, where it is bound, what kubelet gave it"
        " and what NVML shows. Exits with 3 where one of these is missing or contradicts those"
        " before, and where the pod waits and no node would pass now.",
    ),
    "fit": Command(
        "fit:fit",
        "Show whether a pod is refused, and where it would pass; exits with 3 if that is nowhere.",
        "gpuwarden fit -f pod.yaml",
    ),
    "audit verify": Command(
        "audit:verify",
        "Verify an audit log; exits with 3 if it is broken.",
        "gpuwarden audit verify /var/lib/gpuwarden/audit",
        "A log alone cannot show that its end was cut off, or that all of it was written again"
        " with another key. Compare it with what was noted elsewhere: --expect, --checkpoint or"
        " --pin.",
    ),
    "audit prove": Command(
        "audit:prove",
        "Prove that a record is in the log; exits with 3 if not.",
        "gpuwarden audit prove 4711 /var/lib/gpuwarden/audit",
    ),
    "audit consistency": Command(
        "audit:consistency",
        "Prove that a log only grew; exits with 3 if it did not.",
        "gpuwarden audit consistency 4000 4711 /var/lib/gpuwarden/audit",
    ),
    "audit begin-new": Command(
        "audit:begin_new",
        "Begin a new log in place of one that cannot go on; the old folder is kept.",
        "gpuwarden audit begin-new /var/lib/gpuwarden/audit",
        "The new log has the old one's key and names its last checkpoint, so that no agent raises"
        " an alarm. A controller that waits for its log opens the new one within five seconds.",
    ),
    "audit reverify": Command(
        "reverify:reverify_",
        "Verify archived evidence as of its arrival; exits with 3 if it was not valid.",
        "gpuwarden audit reverify DIGEST --store /var/lib/gpuwarden/audit",
        "Archived is what changed something when it arrived, and what something was granted by: a"
        " Binding, kubelet's allocation, a release, an operator's act. Unchanged rounds are not"
        " kept (exit code 6). The record of the arrival gives the time, and names the certificate"
        " and the trust bundle. Where there is none, the archived file gives them, and the output"
        " says so. Each replica has its own evidence: ask where `explain pod` was asked.",
    ),
    "export list": Command(
        "export:list_",
        "List the records that a controller could not export, by exporter and reason.",
        "gpuwarden export list",
        "Reads the dead-letter files of one replica: run it in each controller's container.",
    ),
    "export replay": Command(
        "export:replay",
        "Replay the records that a controller could not export.",
        'gpuwarden export replay postgres --reason "INC 88: the disk is larger"',
        "Leaves a request beside the dead-letter file of one replica: run it in each controller's"
        " container. The controller takes it up within seconds, records it in its audit log, and"
        " delivers; what fails again is in the file again. Records keep their keys, so that none is"
        " stored twice.",
    ),
    "doctor": Command(
        "doctor:doctor",
        "Check an installation of gpuwarden; exits with 3 if a check fails.",
        "gpuwarden doctor --wait 5m",
        "Asks the Kubernetes API by your kubeconfig, or in a pod by its service account, and every"
        " replica of the controller that can be reached. Changes nothing: two pods are created with"
        " dryRun=All. A check of what could not be read is `not checked`, with the reason."
        " docs/doctor.md lists all checks.",
    ),
    "support-bundle": Command(
        "support:support_bundle",
        "Collect what helps with a bug report into one archive, without secrets.",
        "gpuwarden support-bundle --output bundle.tar.gz",
        "Holds versions, settings (values only where they can hold no secret), states of the fleet,"
        " the last refusals by code, and metrics. Never keys, tokens, certificates, evidence, or"
        " texts that others wrote. manifest.json in it lists what is there, what is missing and"
        " why, and what was withheld.",
    ),
    "score": Command(
        "score:score",
        "Run gpuwarden-score, which learns and scores how well GPU types suit jobs.",
        "gpuwarden score replay pai_task_table.csv --plot regret.svg",
        "It is in the package with the extra `controller`, not in the command line alone.",
    ),
    "config print": Command(
        "config:print_",
        "Print every effective value and where it comes from.",
        "gpuwarden config print --process controller --config controller.yaml",
    ),
    "config validate": Command(
        "config:validate",
        "Check a configuration or a policy; exits with 2 and all findings.",
        "gpuwarden config validate --config policy.yaml",
        "The file's `kind` says what it is: AgentConfig, ControllerConfig, ScoreConfig or Policy,"
        " or manifests of AttestationPolicy and AttestationClass, judged as the controller judges"
        " them. `kubectl apply --dry-run=server` checks less: it accepts unknown keys. A policy"
        " that `policy.file` names is checked too, where it is on this machine.",
    ),
    "config schema": Command(
        "config:schema",
        "Print the JSON Schema of a configuration file.",
        "gpuwarden config schema --process controller",
    ),
    "version": Command(
        "program:version",
        "Print the version of this program and of the protocol.",
        "gpuwarden version -o json",
    ),
    "completion": Command(
        "program:completion",
        "Print the completion script of a shell.",
        "source <(gpuwarden completion bash)",
        "Completes names of nodes, classes, GPUs and pods too: it asks as `gpuwarden` would without"
        " options, for two seconds at most.",
    ),
}
"""Command -> its place and help texts."""


def program_of(path: str) -> str:
    """What a person has typed to start it: kubectl starts `kubectl-gpuwarden` as a plugin."""
    return _PLUGIN.replace("-", " ") if PurePath(path).stem == _PLUGIN else PROGRAM


def build(program: str = PROGRAM) -> App:
    """The whole command tree, with `program` in usage and examples."""
    app = _app(program, _HELP)
    codes = "; ".join(f"{int(code)} {text}" for code, text in MEANING.items())
    app.help_epilogue = f"Example: {program} nodes\n\nExit codes: {codes}."
    app.version_flags = ("--version",)
    app.version = _version
    groups = {name: _app(name, help_) for name, help_ in _GROUPS.items()}
    for group, group_app in groups.items():
        first = next(x for words, x in COMMANDS.items() if words.startswith(f"{group} "))
        group_app.help_epilogue = _as(program, f"Example: {first.example}")
    for words, command in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        parent = groups[group] if group else app
        place = f"{_PACKAGE}.{command.place}"
        parent.command(
            place, name=name, help=command.summary, help_epilogue=_as(program, command.epilogue)
        )
    for group_app in groups.values():
        app.command(group_app)
    return app


def _as(program: str, epilogue: str) -> str:
    return epilogue.replace(f"Example: {PROGRAM} ", f"Example: {program} ")


def _version() -> str:
    # Imported here: a command that does not ask for it need not wait for it.
    from gpuwarden.cli.version import version_line  # noqa: PLC0415 - see above

    return version_line()


def run(arguments: Sequence[str], *, program: str = PROGRAM) -> ExitCode:
    """Run one command line and return its exit code; writes to standard output and error."""
    try:
        code = build(program)(
            _with_standard_input(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError as error:
        from gpuwarden.cli.wrong_usage import wrong_usage  # noqa: PLC0415 - few need it

        return _fail(ExitCode.USAGE, wrong_usage(error, program))
    except CliError as error:
        return _fail(error.code, str(error))
    except BrokenPipeError:
        # Whoever read the output has had enough; Python must not complain about it at exit.
        sys.stdout = None
        return ExitCode.OK
    return code if isinstance(code, ExitCode) else ExitCode.OK


def _with_standard_input(arguments: Sequence[str]) -> Sequence[str]:
    """`-` among the paths of `audit verify`, which the parser would take for an option."""
    if tuple(arguments[:2]) != ("audit", "verify"):
        return arguments
    return [STANDARD_INPUT if x == "-" else x for x in arguments]


def _fail(code: ExitCode, text: str) -> ExitCode:
    lines = [shown(line) for line in f"gpuwarden: {text}".splitlines()]
    if sys.stderr.isatty():
        lines = [part for line in lines for part in flowed(line, WIDTH)]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return code


def _app(name: str, help_: str) -> App:
    return App(
        name=name,
        help=help_,
        help_epilogue="",
        help_formatter=HelpFormatter(),
        help_format="plaintext",
        version_flags=[],
    )
