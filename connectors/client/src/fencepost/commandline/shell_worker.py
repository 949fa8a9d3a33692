"""`fencepost work …`: a command for every run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import Collection, Sequence
from datetime import UTC

import click
import msgspec

from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.worker_options import WorkerOptions, work_until_told, worker_options
from fencepost.errors import PermanentFailure, RetryLater
from fencepost.leases import stop_margin_s
from fencepost.run_context import RunContext

_TAIL_LINES = 20
_TAIL_CHARS = 2000


@click.command()
@worker_options("commands", slots=4)
@click.option(
    "--permanent-exit", type=int, multiple=True, metavar="CODE", help="Exit codes that are not worth a retry."
)
@click.argument("command", nargs=-1, required=True)
@pass_connection
def work(
    connection: Connection,
    options: WorkerOptions,
    permanent_exit: tuple[int, ...],
    command: tuple[str, ...],
) -> None:
    """Execute COMMAND for every run of a queue, until SIGTERM or Ctrl-C.

    One word is a shell line, several are a program and its arguments. It gets the payload (JSON) on standard input,
    and FENCEPOST_RUN_ID, _JOB_ID, _ATTEMPT, _SCHEDULED_FOR, _QUEUE, _LEASE_TOKEN and _IDEMPOTENCY_KEY in its
    environment (not the API token). Exit code 0 completes the run, any other fails the attempt with the end of
    standard error as the reason. When the run is cancelled or the lease may end, the command and its children get
    SIGTERM, then SIGKILL.

    \b
    Examples
      fencepost work --queue mail -- ./send-mail.sh
      fencepost work --queue mail -- 'jq -r .to | xargs -I{} sendmail {}'
      fencepost work --queue etl --slots 1 --visibility 120 --permanent-exit 64 -- python load.py --full
    """
    handler = ShellCommand(_argv(command), frozenset(permanent_exit), stop_margin_s(options.visibility_s) / 2)
    work_until_told(connection, options, handler)


def _argv(command: Sequence[str]) -> list[str]:
    if len(command) == 1:
        return ["/bin/sh", "-c", command[0]]
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"{command[0]} is no program on the PATH")
    return list(command)


class ShellCommand:
    """A handler that executes a command. kill_after_s: between SIGTERM and SIGKILL."""

    def __init__(self, argv: Sequence[str], permanent_exits: Collection[int], kill_after_s: float) -> None:
        self._argv = argv
        self._permanent_exits = permanent_exits
        self._kill_after_s = kill_after_s

    async def __call__(self, ctx: RunContext) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(ctx),
            start_new_session=True,  # its children are stopped with it, and Ctrl-C here is not also theirs
        )
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        stderr = asyncio.create_task(_pass_on(process.stderr, tail))
        try:
            await _feed(process.stdin, ctx.payload)
            exit_code = await process.wait()
            await asyncio.wait([stderr], timeout=1)  # a child left in the background may keep it open
        finally:
            stderr.cancel()
            if process.returncode is None:
                await self._end(process)
        self._judge(exit_code, "".join(tail)[-_TAIL_CHARS:].strip())

    def _judge(self, exit_code: int, tail: str) -> None:
        if exit_code == 0:
            return
        ended = f"exit code {exit_code}" if exit_code > 0 else f"ended by signal {-exit_code}"
        reason = f"{ended}: {tail}" if tail else ended
        raise PermanentFailure(reason) if exit_code in self._permanent_exits else RetryLater(None, reason)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """SIGTERM to the command and its children, SIGKILL to those that are still there after kill_after_s."""
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._kill_after_s):
                await process.wait()
                # A shell ends at once, its children may need their time; nothing tells when a group is empty.
                while _signal_group(process, 0):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        _signal_group(process, signal.SIGKILL)
        await process.wait()

    def _environment(self, ctx: RunContext) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "FENCEPOST_TOKEN"}
        return inherited | {
            "FENCEPOST_RUN_ID": str(ctx.run_id),
            "FENCEPOST_JOB_ID": str(ctx.job_id),
            "FENCEPOST_ATTEMPT": str(ctx.attempt),
            "FENCEPOST_SCHEDULED_FOR": ctx.scheduled_for.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "FENCEPOST_QUEUE": ctx.queue,
            "FENCEPOST_LEASE_TOKEN": str(ctx.lease_token),
            "FENCEPOST_IDEMPOTENCY_KEY": ctx.idempotency_key,
        }


async def _feed(stdin: asyncio.StreamWriter | None, payload: object) -> None:
    assert stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a command may not care for its payload
        stdin.write(msgspec.json.encode(payload) + b"\n")
        await stdin.drain()
    stdin.close()


async def _pass_on(stderr: asyncio.StreamReader | None, tail: deque[str]) -> None:
    """Standard error goes on to ours; its end is kept as the reason of a failure."""
    assert stderr is not None
    while chunk := await stderr.read(8192):
        text = chunk.decode(errors="replace")
        click.echo(text, err=True, nl=False)
        tail.extend(text.splitlines(keepends=True))


def _signal_group(process: asyncio.subprocess.Process, number: int) -> bool:
    """Whether there was anybody left to signal."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
