"""What a plan predicts is what then happens: the corpus is planned, applied and decided through a week.

The week has the night on which Europe's clocks go back. Time is the test's: the owner's own code applies the commands
and decides every occurrence, on the real ledger, at the instant at which it comes.

WHOLE_CORPUS=1 takes all of examples/schedules.jsonl (some three minutes); else every eighth line of it is taken, those
apart that fire most.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio

from api.declared_jobs import declared_view
from api.jobs import job_spec
from fencepost.declaration_client import DeclaredJob
from fencepost.declarations.definitions import definition_of, spec_of
from fencepost.declarations.job_fates import job_fates
from fencepost.declarations.job_file import DeclaredSet
from fencepost.declarations.plan import JobPlan, Plan, make_plan
from fencepost.errors import InvalidInput
from fencepost.ids import new_id
from fencepost.job_spec import spec_fields
from ledger.connection import Pool, session
from ledger.declarations import read_declared_jobs
from ledger.fence import Fence, OwnerTransaction, owner_transaction, take_over
from schemas.commands import Command, CreateJob, DeleteJob, UpdateJob
from schemas.http import NewJob
from streams.command_batch import apply_commands
from streams.decisions import Asked, decide
from streams.partition_memory import PartitionMemory
from streams.timers import from_us
from tests.connectors.client.declarations.declared import TENANT
from tests.streams.ledger_dump import fetch

CORPUS = Path(__file__).parents[4] / "examples" / "schedules.jsonl"
WHOLE = bool(os.environ.get("WHOLE_CORPUS"))
SET = "corpus"
START = datetime(2026, 10, 21, 12, 34, 56, tzinfo=UTC)
WEEK = timedelta(days=7)
STEPS_A_TRANSACTION = 50
LINES, FREQUENT = (1, 7 * 1440) if WHOLE else (8, 7 * 48)  # the most occurrences a week of a job of the sample

Happened = set[tuple[UUID, datetime]]


class OwnedWeek:
    """An owner of one partition, which all jobs are on here, and its clock."""

    def __init__(self, pool: Pool, fence: Fence, memory: PartitionMemory) -> None:
        self._pool, self._fence, self._memory = pool, fence, memory
        self._coming: list[tuple[datetime, bytes]] = []

    async def apply(self, commands: Sequence[Command], now: datetime) -> None:
        for start in range(0, len(commands), 500):
            async with owner_transaction(self._pool, self._fence) as tx:
                effects = await apply_commands(_at(tx, now), commands[start : start + 500])
            assert effects.rejected == {}
            self._memory.fold(effects.events)
        for command in commands:
            self._note(command.job_id.bytes)

    async def pass_until(self, end: datetime) -> None:
        """Decide what comes, each occurrence at its instant."""
        while self._coming and self._coming[0][0] <= end:
            async with owner_transaction(self._pool, self._fence) as tx:
                for _ in range(STEPS_A_TRANSACTION):
                    if not self._coming or self._coming[0][0] > end:
                        break
                    await self._decide_next(tx)

    async def _decide_next(self, tx: OwnerTransaction) -> None:
        now, jobs = self._coming[0][0], []
        while self._coming and self._coming[0][0] == now:
            jobs.append(heapq.heappop(self._coming)[1])
        [decided] = await decide(_at(tx, now), [Asked.of(self._fence, self._memory.state, jobs)])
        for job_id in [*decided.finished, *decided.stale]:
            self._memory.forget_job(job_id)
        self._memory.fold([*decided.events, *decided.stale.values()])
        for job_id in jobs:
            self._note(job_id)

    def _note(self, job_id: bytes) -> None:
        """An older note of the job finds nothing to decide."""
        if timer := self._memory.state.job(job_id):
            heapq.heappush(self._coming, (from_us(timer.cursor_us), job_id))


def _at(tx: OwnerTransaction, now: datetime) -> OwnerTransaction:
    return replace(tx, now=now)


@pytest_asyncio.fixture
async def week(ledger_pool: Pool, tmp_path: Path) -> AsyncIterator[OwnedWeek]:
    memory = PartitionMemory(tmp_path)
    yield OwnedWeek(ledger_pool, (await take_over(ledger_pool, 3, "me")).fence, memory)
    memory.close()


class Corpus(NamedTuple):
    """The set as it was, and as the file has it now."""

    before: DeclaredSet
    after: DeclaredSet


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """A quarter of the jobs each is new, gone, changed to another schedule, and left as it is."""
    before, after = {}, {}
    bodies = list(_bodies())
    for index, body in enumerate(bodies):
        name, kind = f"job-{index}", index % 4
        if kind != 0:
            before[name] = body if kind != 2 else bodies[(index + 7) % len(bodies)]
        if kind != 1:
            after[name] = body
    return Corpus(DeclaredSet(SET, before), DeclaredSet(SET, after))


def _bodies() -> Iterator[dict[str, Any]]:
    """Definitions of the corpus; some with an end, a start, excluded dates, jitter; and some intervals."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines()
    for index, line in enumerate(lines[::LINES]):
        entry = json.loads(line)
        schedule = {"cron": entry["expr"], "zone": entry["zone"] or ("Europe/Berlin" if index % 3 else None)}
        schedule |= _VARIATIONS[index % len(_VARIATIONS)]
        try:
            definition = definition_of({"queue": "mail", "schedule": schedule}, UUID(int=0))
            created = make_plan(
                DeclaredSet(SET, {"one": definition}), [], tenant=TENANT, start=START - timedelta(hours=1), horizon=WEEK
            )
        except InvalidInput:  # of the corpus or a variation: refused at create, as it should be
            continue
        if created.load_after.runs <= FREQUENT:
            yield definition
    yield from (
        definition_of({"queue": "mail", "schedule": {"everySeconds": seconds}}, UUID(int=0))
        for seconds in (3_599, 7_200, 90_061, 3_600)
    )


_VARIATIONS: list[dict[str, Any]] = [
    {},
    {},
    {"jitterSeconds": 40},
    {"excludeDates": ["2026-10-24", "2026-10-25"]},
    {"startAt": "2026-10-22T00:00:00Z", "endAt": "2026-10-26T08:00:00Z"},
]


async def test_what_a_plan_predicts_is_what_then_happens(week: OwnedWeek, corpus: Corpus, ledger_pool: Pool) -> None:
    await _apply(week, _plan(corpus.before, [], START - timedelta(hours=1)), START - timedelta(hours=1))
    await week.pass_until(START)
    found = await _found(ledger_pool)
    plan = _plan(corpus.after, found, START)
    assert {each.action for each in plan.jobs} == {"add", "change", "remove", "none"}
    predicted = _predicted(corpus.after, found)

    await _apply(week, plan, START)
    await week.pass_until(START + WEEK)
    happened = await _happened(ledger_pool)

    assert happened - predicted == set()
    assert predicted - happened == set()
    assert len(predicted) > 3_000
    counts = [each.occurrences for each in plan.jobs]
    assert (
        sum(each.unchanged + len(each.added) + len(each.moved) for each in counts)
        == len(happened)
        == plan.load_after.runs
    )


def _plan(declared: DeclaredSet, found: Sequence[DeclaredJob], start: datetime) -> Plan:
    return make_plan(declared, found, tenant=TENANT, start=start, horizon=WEEK, prune=True)


def _predicted(declared: DeclaredSet, found: Sequence[DeclaredJob]) -> Happened:
    fates = job_fates(declared, found, tenant=TENANT, prune=True)
    return {(fate.job_id, fire) for fate in fates for fire in fate.occurrences_after(START, START + WEEK)}


async def _apply(week: OwnedWeek, plan: Plan, now: datetime) -> None:
    await week.apply([_command(step, now) for step in plan.actions()], now)


def _command(step: JobPlan, now: datetime) -> Command:
    """What the API makes of the client's call."""
    head: dict[str, Any] = {"command_id": new_id(), "tenant": TENANT, "job_id": step.job_id, "issued_at": now}
    if step.definition is None:
        return DeleteJob(**head, if_version=step.version)
    body = msgspec.json.encode(spec_fields(spec_of(step.definition, f"{SET}/{step.name}")))
    spec = job_spec(msgspec.json.decode(body, type=NewJob), step.job_id, new_at=None if step.version else now)
    return UpdateJob(**head, spec=spec, if_version=step.version) if step.version else CreateJob(**head, spec=spec)


async def _found(pool: Pool) -> list[DeclaredJob]:
    """The jobs as the API tells them."""
    async with session(pool) as conn:
        rows = await read_declared_jobs(conn, TENANT, SET, limit=10_000)
    return [msgspec.json.decode(msgspec.json.encode(declared_view(row)), type=DeclaredJob) for row in rows]


async def _happened(pool: Pool) -> Happened:
    """Nobody leased a run, so each occurrence that was decided is still there as one."""
    query = "SELECT job_id, scheduled_for FROM runs WHERE scheduled_for > %s AND scheduled_for <= %s"
    return set(await fetch(pool, query, START, START + WEEK))
