"""Workers that wait: one long-poll for each of so many queues in which nothing is ever due, until SIGTERM.

    python -m bench.idle_pollers URL TOKEN QUEUES

Prints `waiting` once every queue has its poll under way.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import uvloop

from bench.http_load import connection, exchange, wire

WAIT_S = 20
CONNECTING_AT_ONCE = 100  # a listening socket has room for so many
SETTLE_S = 1.0


async def main(url: str, token: str, queues: int) -> None:
    turns = asyncio.Semaphore(CONNECTING_AT_ONCE)
    async with AsyncExitStack() as stack:

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            async with turns:
                return await stack.enter_async_context(connection(url))

        connections = await asyncio.gather(*(connect() for _ in range(queues)))
        async with asyncio.TaskGroup() as polls:
            for number, (reader, writer) in enumerate(connections):
                polls.create_task(poll(reader, writer, token, f"idle-{number}"))
            await asyncio.sleep(SETTLE_S)
            print("waiting", flush=True)


async def poll(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, queue: str) -> None:
    request = wire(token, f"/v1/queues/{queue}/lease", {"workerId": "idle", "max": 1, "waitSeconds": WAIT_S})
    while True:
        await exchange(reader, writer, request)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
