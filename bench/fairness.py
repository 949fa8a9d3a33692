"""One tenant's flood beside another's runs on time: how late these are leased, and at what rate the flood drains.

    python -m bench.fairness [--runs 1000000] [--rate 50] [--seconds 60] [--pollers 64] [--quota 0]

Tenant A has so many runs of the high lane due at once, and so many pollers; B has its own queue and a few runs a
second, each on time. B is measured alone, then beside the flood; then B's runs are in A's own queue, which both share:
in the flood's lane, and in the low lane. --quota: leases a second that A may have, 0 for no limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import click
import psycopg

from bench.cluster import cluster, cpu_seconds, report, say, scalar, wait_until
from bench.compare import Figures
from bench.pollers import MARK, Pollers, Seen, pollers
from fencepost import CommandProducer, JobSpec, at
from fencepostd.local import Local
from ledger.connection import ledger_pool, session
from ledger.tenant_limits import set_limits
from ledger.tokens import create_token

A, B = "tenant-a", "tenant-b"
NOTICE_S = 6.0
FLOOD_AHEAD_S = 2.0  # its pollers begin so long before what is measured
FILL_DEADLINE_S = 1_200.0
A_POLL, B_POLLERS = 10, 4


def measure(local: Local, runs: int, rate: float, seconds: float, pollers: int, quota: float) -> Figures:
    flood, on_time = f"flood-{uuid4().hex[:8]}", f"on-time-{uuid4().hex[:8]}"
    tokens = asyncio.run(make_tenants(local.stack.dsn, quota))
    alone = beside(local, tokens, flood, 0, (B, on_time, "normal"), rate, seconds)
    scenes = {
        "beside the flood": (B, on_time, "normal"),
        "in its lane": (A, flood, "high"),
        "in the low lane of its queue": (A, flood, "low"),
    }
    figures = figures_of("alone", alone)
    for scene, place in scenes.items():
        fill(local, flood, runs)
        say(f"fairness: {scene}")
        found = beside(local, tokens, flood, pollers, place, rate, seconds)
        figures |= figures_of(scene, found)
    left = f"SELECT count(*) FROM runs WHERE tenant = '{A}' AND queue = '{flood}'"
    return figures | {"flood, runs": float(runs), "of it left, runs": float(ask(local.stack.dsn, left))}


async def make_tenants(dsn: str, quota: float) -> dict[str, str]:
    """A token of each; A's quota is set before its first poll."""
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        await set_limits(conn, A, {"leases_per_s": quota or None}, "bench")
        return {tenant: await create_token(conn, tenant, "admin") for tenant in (A, B)}


def fill(local: Local, queue: str, runs: int) -> None:
    """Make the flood so many due runs again, and wait until the dust has settled."""
    began, now, there = time.monotonic(), datetime.now(UTC), "SELECT count(*) FROM runs WHERE queue = '{queue}'"
    missing = runs - ask(local.stack.dsn, there.format(queue=queue))
    with CommandProducer(local.stack.bootstrap, tenant=A) as producer:
        for _ in range(missing):
            producer.create_job(JobSpec(queue=queue, lane="high", schedule=at(now)))
    wait_until(local.stack.dsns, there.format(queue=queue), runs, FILL_DEADLINE_S)
    wait_until(local.stack.dsns, "SELECT count(*) FROM outbox", 0, FILL_DEADLINE_S)
    say(f"fairness: {missing:,} runs of the flood made in {time.monotonic() - began:.0f} s")


def beside(
    local: Local,
    tokens: Mapping[str, str],
    flood: str,
    a_pollers: int,
    place: tuple[str, str, str],
    rate: float,
    seconds: float,
) -> dict[str, Any]:
    """What the runs on time come to. place: their tenant, queue and lane. a_pollers: 0 without a flood."""
    tenant, queue, lane = place
    with ExitStack() as stack:
        of_b = stack.enter_context(pollers(local, tokens[B], queue, B_POLLERS, A_POLL)) if tenant == B else None
        begin = time.monotonic() + NOTICE_S
        schedule(local, place, rate, FLOOD_AHEAD_S + seconds)
        time.sleep(max(0.0, begin - FLOOD_AHEAD_S - time.monotonic()))
        of_a = stack.enter_context(pollers(local, tokens[A], flood, a_pollers, A_POLL)) if a_pollers else None
        time.sleep(max(0.0, begin - time.monotonic()))
        _look(of_a), _look(of_b)
        cpu, began = cpu_seconds(local), time.monotonic()
        time.sleep(seconds)
        a_seen, b_seen = _look(of_a), _look(of_b)
        took = time.monotonic() - began
        used = {part: after - cpu[part] for part, after in cpu_seconds(local).items()}
    late = b_seen.lateness_ms if tenant == B else a_seen.lateness_ms
    return {
        "late": late,
        "of": rate * seconds,
        "drained": a_seen.others / took,
        "cpu": used,
        "seconds": took,
        "lane": lane,
    }


def _look(of: Pollers | None) -> Seen:
    return of.look() if of else Seen([], 0)


def schedule(local: Local, place: tuple[str, str, str], rate: float, seconds: float) -> None:
    """One-offs spread evenly over so many seconds, from when the flood's pollers begin."""
    tenant, queue, lane = place
    begin, count = datetime.now(UTC) + timedelta(seconds=NOTICE_S - FLOOD_AHEAD_S), max(1, int(rate * seconds))
    with CommandProducer(local.stack.bootstrap, tenant=tenant) as producer:
        for number in range(count):
            due = begin + timedelta(seconds=seconds * number / count)
            producer.create_job(JobSpec(queue=queue, lane=lane, schedule=at(due), payload=MARK))  # type: ignore[arg-type]


def figures_of(scene: str, found: Mapping[str, Any]) -> Figures:
    late = found["late"] or [float("inf")]
    return {
        f"{scene}: lateness p50, ms": late[len(late) // 2],
        f"{scene}: lateness p99, ms": late[int(len(late) * 0.99)],
        f"{scene}: lateness max, ms": late[-1],
        f"{scene}: started, %": 100 * len(found["late"]) / found["of"],
        f"{scene}: the flood drained, runs/s": found["drained"],
        **{f"{scene}: CPU of {part}, % of a core": 100 * s / found["seconds"] for part, s in found["cpu"].items()},
    }


def ask(dsn: str, query: str) -> int:
    """The one number that a query answers."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return int(scalar(conn, query))


@click.command(help=__doc__)
@click.option("--runs", default=1_000_000, show_default=True, help="of the flood")
@click.option("--rate", default=50.0, show_default=True, help="runs a second on time")
@click.option("--seconds", default=60.0, show_default=True, help="of each measurement")
@click.option("--pollers", default=64, show_default=True, help="of the flood's tenant")
@click.option("--quota", default=0.0, show_default=True, help="leases a second that it may have; 0: no limit")
def main(**size: Any) -> None:
    with cluster(owners=2) as local:
        report("fairness", measure(local, **size))


if __name__ == "__main__":
    main()
