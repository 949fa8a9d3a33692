"""The `fencepost` command: jobs, runs, dead letters, queues, queries, workers, bulk sending, coming fires."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from fencepost.commandline.connection import Connection
from fencepost.errors import FencepostError, InvalidInput, TopicMissing, TryAgain

EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3

# Loaded when they are called: librdkafka and httpx take longer to load than `fencepost next` takes to answer.
COMMANDS = {
    "jobs": "fencepost.commandline.jobs",
    "runs": "fencepost.commandline.runs",
    "dead": "fencepost.commandline.dead_letters",
    "queues": "fencepost.commandline.queues",
    "tenant": "fencepost.commandline.queues",
    "token": "fencepost.commandline.tokens",
    "query": "fencepost.commandline.queries",
    "work": "fencepost.commandline.shell_worker",
    "webhook": "fencepost.commandline.webhook_worker",
    "send": "fencepost.commandline.bulk_send",
    "next": "fencepost.commandline.next_fires",
    "capacity": "fencepost.commandline.capacity",
    "forecast": "fencepost.commandline.forecast",
    "why": "fencepost.commandline.why",
    "doctor": "fencepost.commandline.doctor",
    "verify": "fencepost.commandline.verify",
    "plan": "fencepost.commandline.declared_jobs",
    "apply": "fencepost.commandline.declared_jobs",
}


class _Fencepost(click.Group):
    """Loads commands on demand, and turns the client's errors into one line and an exit code."""

    def list_commands(self, _: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        command = module and getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FencepostError as error:
            _explain(error)


def _explain(error: FencepostError) -> NoReturn:
    click.echo(f"fencepost: {error}", err=True)
    sys.exit(_exit_code(error))


def _exit_code(error: FencepostError) -> int:
    if isinstance(error, InvalidInput):
        return EXIT_USAGE
    return EXIT_UNREACHABLE if isinstance(error, TryAgain | TopicMissing) else EXIT_REFUSED


@click.group(cls=_Fencepost, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--url", envvar="FENCEPOST_URL", show_envvar=True, help="The server, such as http://127.0.0.1:8400.")
@click.option("--token", envvar="FENCEPOST_TOKEN", show_envvar=True, help="An API token, fp_….")
@click.version_option(package_name="fencepost")
@click.pass_context
def main(ctx: click.Context, url: str | None, token: str | None) -> None:
    """Schedule jobs, follow their runs and execute them.

    \b
    Examples
      export FENCEPOST_URL=http://127.0.0.1:8400 FENCEPOST_TOKEN=fp_…
      fencepost next "0 9 * * mon-fri" --zone Europe/Berlin
      fencepost plan jobs.yaml
      fencepost jobs create --queue mail --cron "0 9 * * mon-fri" --zone Europe/Berlin --payload '{"to": "ops"}'
      fencepost work --queue mail -- ./send-mail.sh
      fencepost webhook --queue mail https://hooks.example.com/mail
      fencepost dead replay --queue mail --reason timeout --per-second 5
      fencepost forecast --horizon 7d --limit-per-second 5000
      fencepost capacity --runs-per-day 20M --run-seconds 45
      fencepost verify --last 24h
      fencepost why 019a3f6e-7c1b-8003-9d0a-3f1f1c6a2b11
      fencepost query "SELECT state, count(*) FROM runs GROUP BY state"
      fencepost send --bootstrap 127.0.0.1:9092 --tenant acme jobs.jsonl

    \b
    Exit codes
      0  done
      1  the server refused, or has no such thing; `verify`: a promise is broken
      2  the command line or the input is wrong; `verify`: it cannot be judged
      3  the server or the broker cannot be reached: try again
      4  `forecast --fail`: a second is over the limit
    """
    ctx.obj = Connection(url, token)
