"""Workers that wait: long-polls of so many queues in which nothing is ever due, so many queues each, until SIGTERM.

    python -m bench.idle_pollers URL TOKEN QUEUES QUEUES_A_POLL

The polls end spread over the time that one takes, as those of workers do that were not started at once. Prints
`waiting` once every queue has its poll under way.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack

import uvloop

from bench.http_load import connection, exchange, wire
from fencepost.worker import WAIT_S

CONNECTING_AT_ONCE = 100  # a listening socket has room for so many
SETTLE_S = 1.0


async def main(url: str, token: str, queues: int, queues_a_poll: int) -> None:
    names = [f"idle-{number}" for number in range(queues)]
    shares = [names[first : first + queues_a_poll] for first in range(0, queues, queues_a_poll)]
    turns = asyncio.Semaphore(CONNECTING_AT_ONCE)
    async with AsyncExitStack() as stack:

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            async with turns:
                return await stack.enter_async_context(connection(url))

        connections = await asyncio.gather(*(connect() for _ in shares))
        async with asyncio.TaskGroup() as polls:
            for (reader, writer), share in zip(connections, shares, strict=True):
                polls.create_task(poll(reader, writer, token, share))
            await asyncio.sleep(SETTLE_S)
            print("waiting", flush=True)


async def poll(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, queues: list[str]) -> None:
    wait_s = random.uniform(0, WAIT_S)  # the first time: else all of them would come back at once
    while True:
        await exchange(reader, writer, lease(token, queues, wait_s))
        wait_s = WAIT_S


def lease(token: str, queues: list[str], wait_s: float) -> bytes:
    body = {"workerId": "idle", "max": 1, "waitSeconds": wait_s}
    if len(queues) == 1:
        return wire(token, f"/v1/queues/{queues[0]}/lease", body)
    return wire(token, "/v1/lease", body | {"queues": queues})


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
