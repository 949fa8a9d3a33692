"""Random lives of runs, beside a model of them that shares no line with the ledger.

Whatever is asked in whatever order, the ledger answers as the model does, ends with the rows that the model has, and
has told every change exactly once: the versions of a run's events are 1, 2, 3, … and their kinds those of the model.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from ledger.completions import Completion, Ended, Failure
from ledger.connection import session
from ledger.fence import api_transaction, owner_transaction
from ledger.jobs import Resumption, resume_jobs
from ledger.leases import Beat, HeldLease, extend_leases
from ledger.runs import ManualRun, trigger_jobs
from schemas.ids import run_id_for
from tests.ledger.owned_partition import NOW, OwnedPartition

SEEDS = range(5)
STEPS = 250
MAX_ATTEMPTS = 3
VISIBILITY = timedelta(seconds=30)


@dataclass
class ModelRun:
    job_id: UUID
    due_at: datetime
    state: str = "pending"
    attempt: int = 0
    token: int = 0
    expires_at: datetime | None = None
    told: list[str] = field(default_factory=lambda: ["run_scheduled"])

    def become(self, state: str, event: str) -> None:
        self.state = state
        self.expires_at = None
        self.told.append(event)


class Life:
    """One random life: every step asks the ledger and the model the same, and compares."""

    def __init__(self, owned: OwnedPartition, seed: int) -> None:
        self.owned, self.dice, self.now = owned, random.Random(seed), NOW
        self.runs: dict[UUID, ModelRun] = {}
        self.jobs: dict[UUID, str] = {}
        self.job_told: dict[UUID, list[str]] = defaultdict(list)

    async def step(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (2, self.create),
            (8, self.lease),
            (2, self.beat),
            (5, self.complete),
            (4, self.fail),
            (3, self.expire),
            (3, self.release),
            (2, self.pause),
            (3, self.resume),
            (1, self.delete),
            (2, self.trigger),
        ]
        self.now += timedelta(seconds=self.dice.choice([0, 0, 1, 5, 20]))
        [(_, step)] = self.dice.choices(steps, [weight for weight, _ in steps])
        await step()

    # what the dice pick

    def some_runs(self) -> list[UUID]:
        live = [run_id for run_id, run in self.runs.items() if run.state in ("pending", "leased", "held")]
        gone = [run_id for run_id in self.runs if run_id not in live]
        return self.dice.sample(live, min(len(live), 4)) + self.dice.sample(gone, min(len(gone), 1))

    def some_job(self) -> UUID:
        return self.dice.choice(list(self.jobs)) if self.jobs else uuid4()

    def token_for(self, run: ModelRun) -> int:
        return run.token - (self.dice.random() < 0.2)

    def holds(self, run: ModelRun, token: int) -> bool:
        return run.state == "leased" and run.token == token and run.expires_at is not None and run.expires_at > self.now

    # steps

    async def create(self) -> None:
        job = self.owned.new_job(self.now + timedelta(seconds=self.dice.choice([0, 0, 3])), max_attempts=MAX_ATTEMPTS)
        await self.owned.create(job)
        assert job.run_id is not None
        assert job.due_at is not None
        self.jobs[job.job_id] = "active"
        self.job_told[job.job_id].append("job_created")
        self.runs[job.run_id] = ModelRun(job.job_id, job.due_at)

    async def trigger(self) -> None:
        job_id = self.some_job()
        run_id = run_id_for(job_id, self.now, self.owned.fence.partition, nonce=uuid4().bytes)
        async with owner_transaction(self.owned.pool, self.owned.fence) as tx:
            made = await trigger_jobs(tx, [ManualRun(job_id, run_id, self.now, None)], now=self.now)
        assert [run.run_id for run in made] == ([run_id] if job_id in self.jobs else [])
        if made:
            self.runs[run_id] = ModelRun(job_id, self.now)

    async def lease(self) -> None:
        asked = self.some_runs()
        leased = {run.run_id: run for run in await self.owned.lease(*asked, now=self.now)}
        for run_id in asked:
            run = self.runs[run_id]
            if run.state != "pending" or run.due_at > self.now:
                assert run_id not in leased
                continue
            run.become("leased", "run_leased")
            run.attempt, run.token, run.expires_at = run.attempt + 1, run.token + 1, self.now + VISIBILITY
            got = leased[run_id]
            assert (got.attempt, got.lease_token, got.lease_expires_at) == (run.attempt, run.token, run.expires_at)

    async def beat(self) -> None:
        asked = {run_id: self.token_for(self.runs[run_id]) for run_id in self.some_runs()}
        async with api_transaction(self.owned.pool, asked) as conn:
            beats = [Beat(run_id, token, self.dice.choice([5.0, 30.0])) for run_id, token in asked.items()]
            extended = {each.run_id: each for each in await extend_leases(conn, beats, now=self.now)}
        assert set(extended) == {run_id for run_id, token in asked.items() if self.holds(self.runs[run_id], token)}
        for each in beats:
            run = self.runs[each.run_id]
            if each.run_id in extended and run.expires_at:
                run.expires_at = max(run.expires_at, self.now + timedelta(seconds=each.visibility_s))
                assert extended[each.run_id].lease_expires_at == run.expires_at

    async def complete(self) -> None:
        asked = {run_id: self.token_for(self.runs[run_id]) for run_id in self.some_runs()}
        done = await self.owned.complete(*(Completion(*each) for each in asked.items()), now=self.now)
        assert set(done) == {run_id for run_id, token in asked.items() if self.holds(self.runs[run_id], token)}
        for run_id in done:
            self.runs[run_id].become("gone", "run_completed")

    async def fail(self) -> None:
        permanent, retry_after_s = self.dice.random() < 0.2, self.dice.choice([0.0, 2.0, None])
        asked = {run_id: self.token_for(self.runs[run_id]) for run_id in self.some_runs()}
        failures = [Failure(*each, "boom", permanent, retry_after_s) for each in asked.items()]
        ended = {end.run_id: end for end in await self.owned.fail(*failures, now=self.now)}
        assert set(ended) == {run_id for run_id, token in asked.items() if self.holds(self.runs[run_id], token)}
        for end in ended.values():
            await self.come_back(end, permanent)

    async def expire(self) -> None:
        asked = self.some_runs()
        ended = {end.run_id: end for end in await self.owned.expire(*asked, now=self.now)}
        overdue = {run_id for run_id in asked if (at := self.runs[run_id].expires_at) is not None and at <= self.now}
        assert set(ended) == overdue
        for end in ended.values():
            await self.come_back(end, permanent=False)

    async def come_back(self, end: Ended, permanent: bool) -> None:
        run = self.runs[end.run_id]
        if permanent or run.attempt == MAX_ATTEMPTS:
            expected = "dead"
        else:
            expected = {"active": "retried", "paused": "held", "deleted": "cancelled"}[self.jobs[run.job_id]]
        assert end.outcome == expected
        state = {"retried": "pending", "held": "held", "dead": "dead", "cancelled": "gone"}[expected]
        run.become(state, f"run_{expected}")
        row = await self.owned.run(end.run_id)
        if row is not None and row.due_at is not None:
            assert self.now <= row.due_at <= self.now + timedelta(seconds=2**run.attempt)
            run.due_at = row.due_at  # the one thing that the model cannot know

    async def release(self) -> None:
        asked = {run_id: self.token_for(self.runs[run_id]) for run_id in self.some_runs()}
        released = await self.owned.release(*(HeldLease(*each) for each in asked.items()), now=self.now)
        assert set(released) == {run_id for run_id, token in asked.items() if self.holds(self.runs[run_id], token)}
        for run_id in released:
            run = self.runs[run_id]
            run.attempt -= 1
            match self.jobs[run.job_id]:
                case "paused":
                    run.become("held", "run_held")
                case "deleted":
                    run.become("gone", "run_cancelled")
                case _:
                    run.become("pending", "run_released")

    def of_job(self, job_id: UUID, *states: str) -> list[UUID]:
        return [run_id for run_id, run in self.runs.items() if run.job_id == job_id and run.state in states]

    async def pause(self) -> None:
        job_id = self.some_job()
        held = await self.owned.pause(job_id, now=self.now)
        expected = self.of_job(job_id, "pending") if self.jobs.get(job_id) == "active" else []
        assert set(held) == set(expected)
        for run_id in held:
            self.runs[run_id].become("held", "run_held")
        self.change_job(job_id, "paused", "job_paused", only_from=("active",))

    async def resume(self) -> None:
        job_id = self.some_job()
        held = self.of_job(job_id, "held") if self.jobs.get(job_id) == "paused" else []
        skipped = self.dice.choice([None, *held])
        async with owner_transaction(self.owned.pool, self.owned.fence) as tx:
            waiting = await resume_jobs(tx, [Resumption(job_id, None, skipped, None, None)], now=self.now)
        assert {run.run_id for run in waiting} == set(held) - {skipped}
        for run_id in held:
            if run_id == skipped:
                self.runs[run_id].become("gone", "run_skipped")
            else:
                self.runs[run_id].become("pending", "run_scheduled")
        self.change_job(job_id, "active", "job_resumed", only_from=("paused",))

    async def delete(self) -> None:
        job_id = self.some_job()
        dropped = await self.owned.delete(job_id)
        live = self.jobs.get(job_id) in ("active", "paused")
        assert set(dropped) == set(self.of_job(job_id, "pending", "held") if live else [])
        for run_id in dropped:
            self.runs[run_id].become("gone", "run_cancelled")
        self.change_job(job_id, "deleted", "job_deleted", only_from=("active", "paused"))

    def change_job(self, job_id: UUID, state: str, event: str, *, only_from: tuple[str, ...]) -> None:
        if self.jobs.get(job_id) in only_from:
            self.jobs[job_id] = state
            self.job_told[job_id].append(event)


@pytest.mark.parametrize("seed", SEEDS)
async def test_any_order_of_calls_goes_as_the_model_and_is_told_without_a_gap(owned: OwnedPartition, seed: int) -> None:
    life = Life(owned, seed)
    for _ in range(STEPS):
        await life.step()

    told = await owned.told()
    for run_id, run in life.runs.items():
        events = told.pop(run_id)
        assert [each.version for each in events] == list(range(1, len(events) + 1))
        assert [each.event for each in events] == run.told
    for job_id, expected in life.job_told.items():
        events = told.pop(job_id)
        assert [each.version for each in events] == list(range(1, len(events) + 1))
        assert [each.event for each in events] == expected
    assert told == {}

    assert await rows_of(owned) == {
        run_id: (run.state, run.attempt, run.token, len(run.told), run.expires_at)
        for run_id, run in life.runs.items()
        if run.state != "gone"
    }
    # A life in which nothing happened would prove nothing.
    kinds = {event for run in life.runs.values() for event in run.told}
    assert kinds >= {"run_leased", "run_completed", "run_retried", "run_released", "run_held"}


async def rows_of(owned: OwnedPartition) -> dict[UUID, tuple]:
    async with session(owned.pool) as conn:
        rows = await conn.execute("""
            SELECT run_id, state, attempt, lease_token, version, lease_expires_at FROM runs
            UNION ALL SELECT run_id, 'dead', attempt, lease_token, version, NULL FROM dead_runs
        """)
        return {row[0]: tuple(row[1:]) for row in await rows.fetchall()}
