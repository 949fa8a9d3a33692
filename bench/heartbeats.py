"""How many heartbeats a second, and what one costs: singly, as other SDKs may send them, and in batches, as ours does.

    python -m bench.heartbeats [--leases 1000] [--seconds 5] [--batch 100] [--rounds 3]

CPU time is that of the API and of Postgres, not of the clients, which share the machine. The floors: a bare HTTP server
that gets the same bodies, and the same statement by a bare client over one session. The peers have no such call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple
from uuid import UUID

import msgspec
import uvloop

from bench.benchmark import Benchmark, Stage
from bench.cluster import cpu_seconds
from bench.compare import OURS, Contender, Figures
from bench.drain import fill
from bench.http_load import call, echo_server, send_for, wire
from fencepostd.local import Local
from ledger.connection import ledger_pool, session
from ledger.fence import api_transaction
from ledger.leases import Beat, extend_leases
from schemas.ids import new_id

CONNECTIONS = 32
VISIBILITY_S = 600
LEASE_AT_ONCE = 500
CpuS = Callable[[], float]


class Size(NamedTuple):
    """leases: that are extended round and round. seconds: of each form."""

    leases: int = 1_000
    seconds: float = 5.0
    batch: int = 100


class Lease(msgspec.Struct, rename="camel"):
    run_id: str
    lease_token: int


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    local, numbers = stage.local, count()
    held: list[Lease] = []

    def leases() -> list[Lease]:
        """Held for the whole benchmark; its own heartbeats keep them."""
        if not held:
            held.extend(leased(local, f"beats-{next(numbers)}", size.leases))
        return held

    def bare_http() -> Figures:
        with echo_server() as echo:
            stranger = [Lease(str(new_id()), 1) for _ in range(size.leases)]
            return by_http(echo.url, "none", stranger, size, echo.cpu_s, ("/echo", "/echo"))

    return {
        OURS: lambda: by_http(local.url, local.token, leases(), size, lambda: _used(local, "api", "postgres")),
        "floor (HTTP)": bare_http,
        "floor (SQL)": lambda: by_sql(stage.dsn, leases(), size, lambda: _used(local, "postgres")),
    }


def _used(local: Local, *parts: str) -> float:
    used = cpu_seconds(local)
    return sum(used.get(part, 0.0) for part in parts)


def leased(local: Local, queue: str, runs: int) -> list[Lease]:
    fill(local, queue, runs)
    held: list[Lease] = []
    while len(held) < runs:
        ask = {"workerId": "beats", "max": min(LEASE_AT_ONCE, runs - len(held)), "waitSeconds": 5}
        answer = call(local.url, local.token, f"/v1/queues/{queue}/lease", ask | {"visibilitySeconds": VISIBILITY_S})
        held += msgspec.convert(answer["runs"], list[Lease])
    return held


def by_http(
    url: str, token: str, leases: Sequence[Lease], size: Size, cpu_s: CpuS, paths: tuple[str, str] | None = None
) -> Figures:
    """paths: of the single and of the batch form, where these are not the API's."""
    beat = {"visibilitySeconds": VISIBILITY_S}
    single = [
        wire(token, paths[0] if paths else f"/v1/runs/{each.run_id}/heartbeat", beat | {"leaseToken": each.lease_token})
        for each in leases
    ]
    batches = [
        wire(token, paths[1] if paths else "/v1/runs/heartbeat", {"runs": [_item(each) for each in part]})
        for part in _parts(leases, size.batch)
    ]

    def measured(requests: Sequence[bytes], beats_a_request: float) -> tuple[float, float]:
        before = cpu_s()
        load = uvloop.run(send_for(url, requests, min(CONNECTIONS, len(requests)), size.seconds))
        beats = load.done * beats_a_request
        return beats / load.seconds, (cpu_s() - before) / beats * 1e6

    singly, in_batches = measured(single, 1), measured(batches, len(leases) / len(batches))
    return _figures("singly", *singly) | _figures(f"in batches of {size.batch}", *in_batches)


def _item(lease: Lease) -> dict[str, object]:
    return {"runId": lease.run_id, "leaseToken": lease.lease_token, "visibilitySeconds": VISIBILITY_S}


def _figures(how: str, beats_per_s: float, cpu_us: float) -> Figures:
    return {f"{how}, heartbeats/s": beats_per_s, f"CPU {how}, µs/heartbeat": cpu_us}


def by_sql(dsn: str, leases: Sequence[Lease], size: Size, cpu_s: CpuS) -> Figures:
    beats, seconds, cpu = asyncio.run(bare_beats(dsn, leases, size, cpu_s))
    return _figures(f"in batches of {size.batch}", beats / seconds, cpu / beats * 1e6)


async def bare_beats(dsn: str, leases: Sequence[Lease], size: Size, cpu_s: CpuS) -> tuple[int, float, float]:
    """How many leases a bare client extended, in how many seconds, and of CPU time.

    That is looked at while the session is open: what a process has used is gone with it.
    """
    batches = [
        [Beat(UUID(each.run_id), each.lease_token, VISIBILITY_S) for each in part]
        for part in _parts(leases, size.batch)
    ]
    async with ledger_pool(dsn, size=1) as pool:
        async with session(pool):
            pass  # it is open now
        before = cpu_s()  # first: it asks every part for its health, which takes a while
        beats, began = 0, time.monotonic()
        while time.monotonic() - began < size.seconds:
            batch = batches[beats // size.batch % len(batches)]
            async with api_transaction(pool, [beat.run_id for beat in batch]) as conn:
                extended = await extend_leases(conn, batch)
            assert len(extended) == len(batch)
            beats += len(batch)
        return beats, time.monotonic() - began, cpu_s() - before


def _parts(leases: Sequence[Lease], size: int) -> list[Sequence[Lease]]:
    return [leases[start : start + size] for start in range(0, len(leases), size)]


BENCH = Benchmark("heartbeats", "Heartbeats a second, and the CPU time of one.", Size(), contenders)

if __name__ == "__main__":
    BENCH.main()
