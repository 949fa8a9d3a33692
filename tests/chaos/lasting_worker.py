"""A worker whose runs last until SIGUSR1, then all of them end. Beside that as worker_process.

FENCEPOST_URL=… FENCEPOST_TOKEN=… python -m tests.chaos.lasting_worker LOG QUEUE NAME VISIBILITY_S
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from fencepost import RunContext, Worker
from tests.chaos.worker_process import Log, RecordingClient, handle


async def main(path: str, queue: str, name: str, visibility_s: str) -> None:
    log, over = Log(Path(path), name), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, over.set)

    async def handler(context: RunContext) -> None:
        await handle(log, context.run_id, context.lease_token, over.wait())

    async with RecordingClient(os.environ["FENCEPOST_URL"], os.environ["FENCEPOST_TOKEN"], log) as client:
        await Worker(client, queue, handler, visibility_s=float(visibility_s), worker_id=name, drain_s=2).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
