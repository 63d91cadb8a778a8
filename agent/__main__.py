"""The program `gpuwarden-agent`: settings, logs, tracing, then the app; exit codes in `app`.

`gpuwarden-agent support-bundle` collects what helps with a bug report instead.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from agent.app import ExitCode, HostUnreadableError, Parts, real_parts, run_agent
from agent.settings import AgentSettings
from gpuwarden import __version__
from gpuwarden.settings.loader import AGENT
from gpuwarden.settings.report import effective
from gpuwarden.settings.start import settings_or_exit
from gpuwarden.telemetry import logs, trace_export
from gpuwarden.telemetry.names import Event

PROGRAM = "gpuwarden-agent"
SUPPORT = "support-bundle"
_COMMANDS_HELP = f"`{PROGRAM} {SUPPORT}` collects what helps with a bug report; it has --help."


def main(
    argv: Sequence[str] | None = None, *, parts: Callable[[AgentSettings], Parts] = real_parts
) -> int:
    """Run the agent, or collect a support bundle about it; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == [SUPPORT]:
        from agent import support_bundle  # noqa: PLC0415 -- an agent that runs needs none of it

        return support_bundle.main(arguments[1:])
    loaded = settings_or_exit(PROGRAM, AGENT, arguments, commands=_COMMANDS_HELP)
    settings = loaded.settings
    logs.configure(settings.log.level, settings.log.format, service=PROGRAM)
    logs.logger("agent").info(Event.CONFIG_EFFECTIVE, config=effective(loaded))
    for finding in loaded.warnings:
        logs.logger("agent").warning(Event.CONFIG_IGNORED, warning=str(finding))
    with logs.unhandled_logged():
        end_tracing = trace_export.start(
            settings.telemetry.otlp,
            service=PROGRAM,
            version=__version__,
            headers=settings.telemetry.otlp_headers,
        )
        try:
            made = parts(settings)
        except HostUnreadableError as error:
            logs.logger("agent").error(Event.PROCESS_START_FAILED, detail=str(error))
            return int(ExitCode.FAULT)
        code = asyncio.run(run_agent(settings, made))
        end_tracing()
        return int(code)


if __name__ == "__main__":
    sys.exit(main())
