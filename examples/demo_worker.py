"""A worker: `python -m examples.demo_worker URL TOKEN QUEUE`. Drains on SIGTERM."""

from __future__ import annotations

import asyncio
import sys

from fencepost import FencepostClient, RunContext, Worker


async def handle(run: RunContext) -> dict[str, int]:
    """What a real handler would do takes longer. run.run_id is a good idempotency key for it."""
    return {"attempt": run.attempt}


async def main(url: str, token: str, queue: str) -> None:
    async with FencepostClient(url, token) as client:
        await Worker(client, queue, handle, slots=50).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
