"""A worker as a process of its own, to be killed and frozen; it notes all it sees in a log that outlives it.

    FENCEPOST_URL=… FENCEPOST_TOKEN=… python -m tests.chaos.worker_process LOG QUEUE NAME VISIBILITY_S WORK_S [--blind]

With --blind it is not the SDK's worker but one that reports its outcome however long it took: what the fence is for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from bench.failed_calls import FailedCalls
from fencepost import FencepostClient, RunContext, TryAgain, Worker
from fencepost.models import Completion, LeaseAnswer, OutcomeAnswer
from tests.chaos.history import EntryKind, WorkerEntry

SLOTS = 50
NO_RUN = UUID(int=0)


class Log:
    """Appends entries; each is one write, which a kill -9 cannot take back."""

    def __init__(self, path: Path, worker: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._worker = worker

    def note(self, kind: EntryKind, run_id: UUID, token: int, **more: Any) -> None:
        entry = WorkerEntry(kind, datetime.now(UTC), self._worker, str(run_id), token, **more)
        os.write(self._file, msgspec.json.encode(entry) + b"\n")


class RecordingClient(FencepostClient):
    """Notes the leases that come, the answers that completions get, and what fails on the way."""

    def __init__(self, url: str, token: str, log: Log) -> None:
        transport = FailedCalls(lambda failure: log.note("failed", NO_RUN, 0, detail=failure))
        super().__init__(url, token, transport=transport)
        self._log = log

    async def poll(self, *arguments: Any, **options: Any) -> LeaseAnswer:
        answer = await super().poll(*arguments, **options)
        for run in answer.runs:
            terms = {"attempt": run.attempt, "due_at": run.due_at, "expires_at": run.lease_expires_at}
            self._log.note("leased", run.run_id, run.lease_token, **terms)
        return answer

    async def complete_many(self, completions: Sequence[Completion], **options: Any) -> list[OutcomeAnswer]:
        answers = await super().complete_many(completions, **options)
        for completion, answer in zip(completions, answers, strict=True):
            self._log.note("answered", completion.run_id, completion.lease_token, status=answer.status)
        return answers


async def handle(log: Log, run_id: UUID, token: int, work: Awaitable[object]) -> None:
    """What every handler does: note its start and its end, and work in between."""
    log.note("started", run_id, token)
    try:
        await work
    except asyncio.CancelledError:
        log.note("stopped", run_id, token)
        raise
    log.note("finished", run_id, token)


async def work(client: RecordingClient, log: Log, queue: str, name: str, visibility_s: float, work_s: float) -> None:
    """The SDK's worker, until SIGTERM."""

    async def handler(context: RunContext) -> None:
        await handle(log, context.run_id, context.lease_token, asyncio.sleep(work_s))

    await Worker(
        client, queue, handler, slots=SLOTS, visibility_s=visibility_s, worker_id=name, drain_s=2, stop_grace_s=1
    ).run()


async def work_blindly(
    client: RecordingClient, log: Log, queue: str, name: str, visibility_s: float, work_s: float
) -> None:
    """Lease, handle, complete, with no thought for the lease."""
    while True:
        try:
            runs = await client.lease(queue, name, max_runs=SLOTS, visibility_s=visibility_s, wait_s=1)
            await asyncio.gather(*(handle(log, run.run_id, run.lease_token, asyncio.sleep(work_s)) for run in runs))
            if runs:
                await client.complete_many([Completion(run.run_id, run.lease_token) for run in runs])
        except TryAgain:
            continue


async def main(path: str, queue: str, name: str, visibility_s: str, work_s: str, *flags: str) -> None:
    log = Log(Path(path), name)
    run = work_blindly if "--blind" in flags else work
    async with RecordingClient(os.environ["FENCEPOST_URL"], os.environ["FENCEPOST_TOKEN"], log) as client:
        await run(client, log, queue, name, float(visibility_s), float(work_s))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
