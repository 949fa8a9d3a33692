"""Recurring schedules by the million, straight into a ledger that nobody works on: real ones, spread over the hour.

Two kinds. The *quiet* are those of examples/schedules.jsonl, each by its share, where the minute is a number (or H)
with every minute in its place; of these only what does not fire for some hours, so that at every size the same runs are
measured. The *lively* fire every minute, evenly over it. Both in the order of their next
fires, which keeps Postgres's indexes growing at their ends.

The rows are those that commands would have made: the first job of each schedule goes through the very function, the
others differ from it by their ids alone.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import repeat
from multiprocessing.sharedctypes import Synchronized
from typing import Any, NamedTuple
from uuid import UUID

from bench.cluster import say
from bench.next_fire import CORPUS
from ledger.bulk_load import copy_jobs
from ledger.connection import ledger_pool
from ledger.fence import Fence, owner_transaction, release_partition, take_over
from ledger.jobs import NewJob
from schemas.commands import CreateJob, JobSpec
from schemas.errors import CommandRejected
from schemas.ids import new_id, partition_of_job, run_id_for
from streams.job_commands import new_job

QUEUE = "scale"
QUIET_FOR = timedelta(hours=3)
PERIOD_S = 60
A_TRANSACTION = 1_000
JOBS_A_PATTERN = 100  # about: to look at each costs as much as to write ten jobs
TELL_EVERY_S = 10.0
_MINUTE = re.compile(r"(\d{1,2}|H) ")
_HASHED = re.compile(r"(?:^|[ ,])H(?![A-Za-z])")


class Load(NamedTuple):
    """What to write where. created_at: of all jobs, about now. loaders: processes."""

    dsn: str
    tenant: str
    partitions: int
    schedules: int
    lively: int
    created_at: datetime
    loaders: int = 2


class Pattern(NamedTuple):
    """So many jobs with one schedule. first: one of them."""

    first: NewJob
    jobs: int


def load(wanted: Load) -> float:
    """Write it, telling how far it is; returns the seconds. Every partition is taken over, and released at the end."""
    began, context = time.monotonic(), multiprocessing.get_context("spawn")
    done = context.Value("q", 0)
    fences = asyncio.run(_take_all(wanted))
    loaders = [context.Process(target=_run, args=(wanted, fences, share, done)) for share in range(wanted.loaders)]
    for loader in loaders:
        loader.start()
    for loader in loaders:
        while loader.is_alive():
            loader.join(TELL_EVERY_S)
            _tell(done.value, wanted.schedules, time.monotonic() - began)
    if failed := [loader.exitcode for loader in loaders if loader.exitcode]:
        raise RuntimeError(f"loaders ended with {failed}")
    asyncio.run(_release_all(wanted, fences))
    return time.monotonic() - began


def _tell(done: int, wanted: int, seconds: float) -> None:
    if done == 0:
        say("scale: preparing the schedules")
        return
    left_min = (wanted - done) / done * seconds / 60
    say(f"scale: {done:,} of {wanted:,} schedules, {done / seconds:,.0f}/s, about {left_min:.0f} min left")


async def _take_all(wanted: Load) -> list[Fence]:
    async with ledger_pool(wanted.dsn, size=1) as pool:
        return [(await take_over(pool, partition, "bulk load")).fence for partition in range(wanted.partitions)]


async def _release_all(wanted: Load, fences: list[Fence]) -> None:
    async with ledger_pool(wanted.dsn, size=1) as pool:
        for fence in fences:
            await release_partition(pool, fence)


def _run(wanted: Load, fences: list[Fence], share: int, done: Synchronized[int]) -> None:
    asyncio.run(_write(wanted, fences, share, done))


async def _write(wanted: Load, fences: list[Fence], share: int, done: Synchronized[int]) -> None:
    """Every `loaders`-th job, in transactions of one partition each."""
    waiting: defaultdict[int, list[NewJob]] = defaultdict(list)
    async with ledger_pool(wanted.dsn, size=1) as pool:

        async def write(partition: int) -> None:
            async with owner_transaction(pool, fences[partition]) as tx:
                await copy_jobs(tx, waiting[partition])
            with done.get_lock():
                done.value += len(waiting.pop(partition))

        for partition, job in jobs(wanted, share):
            waiting[partition].append(job)
            if len(waiting[partition]) == A_TRANSACTION:
                await write(partition)
        for partition in list(waiting):
            await write(partition)


def jobs(wanted: Load, share: int = 0) -> Iterator[tuple[int, NewJob]]:
    """A loader's share of the jobs, each with its partition."""
    for number, pattern in enumerate(_in_turn(wanted)):
        if number % wanted.loaders == share:
            job_id = new_id()
            partition = partition_of_job(job_id, wanted.partitions)
            yield partition, job_like(pattern, job_id, partition)


def job_like(pattern: Pattern, job_id: UUID, partition: int) -> NewJob:
    """Another job with the schedule, nothing of which depends on the job's id."""
    fire = pattern.first.next_fire_at
    assert fire is not None
    return pattern.first._replace(job_id=job_id, run_id=run_id_for(job_id, fire, partition))


def _in_turn(wanted: Load) -> Iterator[Pattern]:
    """The pattern of every job: the lively evenly among the quiet."""
    lively = min(wanted.lively, wanted.schedules)
    quiet = (each for pattern in quiet_patterns(wanted) for each in repeat(pattern, pattern.jobs))
    for number in range(wanted.schedules):
        # One more is due whenever the share that was written so far falls behind.
        at = (number + 1) * lively // wanted.schedules
        yield _lively(wanted, at, lively) if at > number * lively // wanted.schedules else next(quiet)


def _lively(wanted: Load, number: int, of: int) -> Pattern:
    # Counted from the creation, so the creations are what is spread.
    created_at = wanted.created_at - timedelta(seconds=PERIOD_S) * number / of
    return _pattern(wanted._replace(created_at=created_at), {"everySeconds": PERIOD_S}, 1)


def quiet_patterns(wanted: Load) -> list[Pattern]:
    """Of the real schedules, in the order of their next fires; their counts make up what is not lively."""
    total = wanted.schedules - min(wanted.lively, wanted.schedules)
    if total == 0:
        return []
    found: list[Pattern] = []
    real = real_schedules()
    minutes = range(min(60, max(1, total // (JOBS_A_PATTERN * len(real)))))
    for (expr, zone), count in real.items():
        with suppress(CommandRejected):  # of another dialect
            for cron, share in _spread(expr, count, minutes):
                pattern = _pattern(wanted, {"cron": cron, "zone": zone}, share)
                assert pattern.first.next_fire_at is not None
                if pattern.first.next_fire_at > wanted.created_at + QUIET_FOR:
                    found.append(pattern)
    found.sort(key=lambda pattern: (pattern.first.next_fire_at, pattern.first.definition))
    return _scaled(found, total)


def _scaled(patterns: list[Pattern], total: int) -> list[Pattern]:
    """The same shares of so many jobs; what is rounded off goes to the next."""
    whole, passed, given, scaled = sum(pattern.jobs for pattern in patterns), 0, 0, []
    for pattern in patterns:
        passed += pattern.jobs
        upto = passed * total // whole
        scaled.append(pattern._replace(jobs=upto - given))
        given = upto
    return scaled


def _spread(expr: str, count: int, minutes: range) -> Iterator[tuple[str, int]]:
    """The expression at other minutes of its hours, with how many jobs of the whole have it."""
    found = _MINUTE.match(expr)
    rest = expr[found.end() :] if found else expr
    if _HASHED.search(rest):
        return  # its fires are each job's own
    if found is None:
        yield expr, count * len(minutes)
        return
    own = 0 if found[1] == "H" else int(found[1])
    for minute in minutes:
        yield f"{(own + minute) % 60} {rest}", count


def real_schedules() -> Counter[tuple[str, str]]:
    """(expression, zone) of examples/schedules.jsonl, with how many files have it."""
    lines = map(json.loads, CORPUS.read_text(encoding="utf-8").splitlines())
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        counts[line["expr"], line["zone"] or "UTC"] += line["count"]
    return counts


def _pattern(wanted: Load, schedule: dict[str, Any], count: int) -> Pattern:
    spec = JobSpec(queue=QUEUE, schedule=schedule)
    job_id = new_id()
    command = CreateJob(command_id=job_id, tenant=wanted.tenant, job_id=job_id, issued_at=wanted.created_at, spec=spec)
    return Pattern(new_job(command, 0, wanted.created_at), count)
