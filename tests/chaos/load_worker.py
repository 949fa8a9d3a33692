"""A worker as a process for mixed loads: what a run's handler does is in its payload. Beside that as worker_process.

    FENCEPOST_URL=… FENCEPOST_TOKEN=… python -m tests.chaos.load_worker LOG QUEUE NAME VISIBILITY_S

SIGUSR1 makes it lose every heartbeat, SIGUSR2 send them again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fencepost import RunContext, Unreachable, Worker
from fencepost.models import Beat, OutcomeAnswer
from tests.chaos.worker_process import Log, RecordingClient, handle

SLOTS = 60


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """A payload. work_s: how long the handler takes. fails: so many attempts of a run fail, the first ones."""

    work_s: float = 0.01
    fails: int = 0


class MuteClient(RecordingClient):
    """Whose heartbeats can be lost on their way."""

    is_mute = False

    async def heartbeat_many(self, beats: Sequence[Beat], **options: Any) -> list[OutcomeAnswer]:
        if self.is_mute:
            raise Unreachable("lost on purpose", sent=False)
        return await super().heartbeat_many(beats, **options)


class FailedOnPurpose(Exception):
    """What a handler fails with, as its payload wants it."""


def be_mute(is_mute: bool) -> None:
    MuteClient.is_mute = is_mute


async def main(path: str, queue: str, name: str, visibility_s: str) -> None:
    for number, is_mute in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):
        asyncio.get_running_loop().add_signal_handler(number, be_mute, is_mute)
    log = Log(Path(path), name)  # only now: when it is there, signals may come

    async def handler(context: RunContext) -> None:
        work = msgspec.convert(context.payload or {}, Work)
        if context.attempt <= work.fails:
            log.note("started", context.run_id, context.lease_token)
            raise FailedOnPurpose
        await handle(log, context.run_id, context.lease_token, asyncio.sleep(work.work_s))

    terms: dict[str, Any] = {
        "slots": SLOTS,
        "visibility_s": float(visibility_s),
        "worker_id": name,
        "drain_s": 2,
        "stop_grace_s": 1,
    }
    async with MuteClient(os.environ["FENCEPOST_URL"], os.environ["FENCEPOST_TOKEN"], log) as client:
        await Worker(client, queue, handler, **terms).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
