"""What waiting costs: CPU while nothing is due, with many schedules, and with many queues that are waited on.

    python -m bench.idle [--schedules 100000] [--queues 5000] [--seconds 30] [--peers all]

The schedules are yearly crons; of a peer, jobs that are due in a year. The queues are waited on by a long-poll each,
and by long-polls of 100 queues. CPU is in percent of one core, of our roles and Postgres, Kafka apart from them; of a
peer its worker and its sessions with Postgres. The floor is the same Fencepost before it got any of that. There is one
round, for what was made stays.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg

from bench.benchmark import Benchmark, Stage
from bench.cluster import cpu_seconds, say, wait_until
from bench.compare import FLOOR, OURS, Contender, Figures
from fencepost import CommandProducer, JobSpec, cron
from fencepostd.local import LOCAL_TENANT, Local

SETTLE_S = 10.0  # what creating so many left to be done must be over
WAITING_SETTLE_S = 60.0  # of queues that were not waited on before: after that they are looked at as rarely as ever
QUEUES_A_POLL = 100
WAITING, WAITING_TOGETHER = "waiting queues", f"waiting queues, {QUEUES_A_POLL} a poll"


class Size(NamedTuple):
    """seconds: that the CPU is watched, each time."""

    schedules: int = 100_000
    queues: int = 5_000
    seconds: float = 30.0


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    def bare() -> Figures:
        settle(stage, size)
        nothing = watched(stage.local, size.seconds)
        return {
            key: value for what in ("idle schedules", WAITING, WAITING_TOGETHER)
            for key, value in _figures(what, nothing).items()
        }  # fmt: skip

    def ours() -> Figures:
        make_schedules(stage, size.schedules)
        settle(stage, size)
        schedules = watched(stage.local, size.seconds)
        figures = _figures("idle schedules", schedules)
        for what, queues_a_poll in ((WAITING, 1), (WAITING_TOGETHER, QUEUES_A_POLL)):
            with pollers(stage.local, size.queues, queues_a_poll):
                time.sleep(min(WAITING_SETTLE_S, size.seconds))
                figures |= _figures(what, watched(stage.local, size.seconds))
        return {
            **figures, "idle schedules, jobs": float(size.schedules), "waiting queues, queues": float(size.queues),
        }  # fmt: skip

    peers: dict[str, Contender] = {
        peer.name: lambda peer=peer: peer.idle(size.schedules, size.seconds)  # type: ignore[misc]
        for peer in stage.peers
    }
    return {FLOOR: bare, OURS: ours, **peers}


def make_schedules(stage: Stage, schedules: int) -> None:
    say(f"idle: making {schedules:,} schedules")
    with CommandProducer(stage.local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        for _ in range(schedules):
            producer.create_job(JobSpec(queue="yearly", schedule=cron(f"H H H {other_month()} *")))
    wait_until(stage.dsn, "SELECT count(*) FROM jobs WHERE queue = 'yearly'", schedules, 600)


def other_month() -> int:
    """Half a year from now: none of the yearly ones comes while it is watched."""
    return (datetime.now(UTC).month + 5) % 12 + 1


def settle(stage: Stage, size: Size) -> None:
    """Wait until what was made is known everywhere; what autovacuum would do of it once is done now."""
    wait_until(stage.dsn, "SELECT count(*) FROM outbox", 0)
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        conn.execute("VACUUM (ANALYZE)")
    time.sleep(min(SETTLE_S, size.seconds))


def watched(local: Local, seconds: float) -> dict[str, float]:
    """Each part's CPU time over so many seconds, in percent of a core."""
    before, began = cpu_seconds(local), time.monotonic()
    time.sleep(seconds)
    after, passed = cpu_seconds(local), time.monotonic() - began
    return {part: 100 * (after[part] - used) / passed for part, used in before.items()}


def _figures(what: str, percent: dict[str, float]) -> Figures:
    kafka = percent.get("kafka", 0.0)
    return {
        f"CPU with {what}, % of a core": sum(percent.values()) - kafka,
        f"Kafka's CPU with {what}, % of a core": kafka,
    }


@contextmanager
def pollers(local: Local, queues: int, queues_a_poll: int) -> Iterator[None]:
    """Meanwhile so many queues are waited on."""
    command = [sys.executable, "-m", "bench.idle_pollers", local.url, local.token, str(queues), str(queues_a_poll)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "waiting\n":
                raise RuntimeError(f"the polls of {queues} queues did not begin")
            yield
        finally:
            process.terminate()


BENCH = Benchmark("idle", "The CPU of waiting, with schedules and with queues.", Size(), contenders, rounds=1)

if __name__ == "__main__":
    BENCH.main()
