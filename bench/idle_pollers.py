"""Workers that wait: one long-poll for each of so many queues in which nothing is ever due, until SIGTERM.

    python -m bench.idle_pollers URL TOKEN QUEUES

Prints `waiting` once every queue has its poll under way.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from bench.http_load import connection, exchange, wire

WAIT_S = 20


async def poll(url: str, token: str, queue: str, turn: asyncio.Semaphore) -> None:
    request = wire(token, f"/v1/queues/{queue}/lease", {"workerId": "idle", "max": 1, "waitSeconds": WAIT_S})
    async with turn:
        opened = connection(url)
        reader, writer = await opened.__aenter__()
    while True:
        await exchange(reader, writer, request)


async def main(url: str, token: str, queues: int) -> None:
    turn = asyncio.Semaphore(100)  # connections being made at once: a listening socket has room for so many
    polls = [asyncio.create_task(poll(url, token, f"idle-{number}", turn)) for number in range(queues)]
    first, _ = await asyncio.wait(polls, timeout=max(2.0, queues / 1_000), return_when=asyncio.FIRST_EXCEPTION)
    for failed in first:
        failed.result()
    print("waiting", flush=True)
    await asyncio.gather(*polls)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
