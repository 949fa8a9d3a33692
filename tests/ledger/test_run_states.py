"""Random lives of runs, beside a model of them (run_model.py) that shares no line with the ledger.

Whatever is asked in whatever order, the ledger answers as the model does, ends with the rows that the model has, and
has told every change exactly once: the versions of a run's events have no gap and their kinds are those of the model.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from ledger.completions import Completion, Ended, Failure
from ledger.connection import session
from ledger.dead_letters import Replay
from ledger.fence import owner_transaction
from ledger.jobs import Policies, Resumption, resume_jobs
from ledger.leases import Beat, HeldLease, Snooze
from schemas.ids import run_id_for
from tests.ledger import run_model
from tests.ledger.owned_partition import NOW, OwnedPartition
from tests.ledger.run_model import ALLOW, MAX_ATTEMPTS, ModelJob, ModelRun

SEEDS = range(8)
STEPS = 350
VISIBILITY = timedelta(seconds=30)


class Life:
    """One random life: every step asks the ledger and the model the same, and compares."""

    def __init__(self, owned: OwnedPartition, seed: int) -> None:
        self.owned, self.dice, self.now = owned, random.Random(seed), NOW
        self.runs: run_model.Runs = {}
        self.jobs: dict[UUID, ModelJob] = {}
        self.live_at_edit: dict[
            UUID, set[UUID]
        ] = {}  # the runs of a job that were leased when it ceased to allow overlap

    async def step(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (2, self.create),
            (16, self.lease),
            (2, self.beat),
            (4, self.complete),
            (4, self.fail),
            (5, self.expire),
            (3, self.release),
            (3, self.snooze),
            (2, self.pause),
            (3, self.resume),
            (1, self.delete),
            (4, self.trigger),
            (2, self.cancel),
            (2, self.replay),
            (4, self.admit),
            (2, self.skip_late),
            (3, self.edit),
        ]
        self.now += timedelta(seconds=self.dice.choice([0, 0, 1, 5, 20]))
        [(_, step)] = self.dice.choices(steps, [weight for weight, _ in steps])
        await step()
        gated = {run_id: run for run_id, run in self.runs.items() if run.state == "leased" and run.overlap}
        assert await self.owned.slots() == {run.job_id: run_id for run_id, run in gated.items() if not run.slotless}
        self.prove_that_none_is_beside_another(gated)

    def prove_that_none_is_beside_another(self, gated: run_model.Runs) -> None:
        """Of a job whose policy is skip or replace one run is live, or some of those that were when it was made so."""
        for job_id in self.jobs:
            live = {run_id for run_id, run in gated.items() if run.job_id == job_id}
            assert len(live) <= 1 or live <= self.live_at_edit[job_id]

    # what the dice pick

    def some_runs(self) -> list[UUID]:
        live = [run_id for run_id, run in self.runs.items() if run.state in ("pending", "leased", "held")]
        gone = [run_id for run_id in self.runs if run_id not in live]
        return self.dice.sample(live, min(len(live), 5)) + self.dice.sample(gone, min(len(gone), 1))

    def some_job(self) -> UUID:
        return self.dice.choice(list(self.jobs)) if self.jobs else uuid4()

    def token_for(self, run: ModelRun) -> int:
        return run.token - (self.dice.random() < 0.1)

    def some_leases(self) -> dict[UUID, int]:
        return {run_id: self.token_for(self.runs[run_id]) for run_id in self.some_runs()}

    def held(self, leases: dict[UUID, int]) -> set[UUID]:
        return {run_id for run_id, token in leases.items() if self.runs[run_id].holds(token, self.now)}

    # steps

    async def create(self) -> None:
        overlap = self.dice.randrange(3)
        timeout_s, deadline_s = self.dice.choice([None, 10.0, 40.0]), self.dice.choice([None, 15.0])
        due_at = self.now + timedelta(seconds=self.dice.choice([0, 0, 3]))
        policies = Policies(overlap, timeout_s, deadline_s)
        job = self.owned.new_job(due_at, max_attempts=MAX_ATTEMPTS, policies=policies)
        await self.owned.create(job)
        assert job.run_id is not None
        model = self.jobs[job.job_id] = ModelJob(overlap, seconds(timeout_s), seconds(deadline_s), job.run_id)
        self.runs[job.run_id] = ModelRun.of(job.job_id, model, due_at)

    async def trigger(self) -> None:
        job_id = self.some_job()
        in_turn = self.dice.random() < 0.5
        run_id = await self.owned.trigger(job_id, self.now, in_turn=in_turn)
        if job_id in self.jobs:
            self.runs[run_id] = ModelRun.of(job_id, self.jobs[job_id], self.now, deadline=False, in_turn=in_turn)
        else:
            assert await self.owned.run(run_id) is None

    async def lease(self) -> None:
        asked = self.some_runs()
        expected = run_model.leasable(self.runs, asked, self.now)
        leased = {run.run_id: run for run in await self.owned.lease(*asked, now=self.now)}
        assert set(leased) == expected
        for run_id, got in leased.items():
            run = self.runs[run_id]
            run.lease(self.now, VISIBILITY)
            assert (got.attempt, got.lease_token, got.lease_expires_at) == (run.attempt, run.token, run.expires_at)

    async def beat(self) -> None:
        asked = self.some_leases()
        beats = [Beat(run_id, token, self.dice.choice([5.0, 30.0])) for run_id, token in asked.items()]
        extended = {each.run_id: each for each in await self.owned.beat(*beats, now=self.now)}
        assert set(extended) == self.held(asked)
        for each in beats:
            run = self.runs[each.run_id]
            if each.run_id in extended:
                run.extend(self.now + timedelta(seconds=each.visibility_s))
                answer = extended[each.run_id]
                assert (answer.lease_expires_at, answer.cancel) == (run.expires_at, run.cancel is not None)

    async def complete(self) -> None:
        asked = self.some_leases()
        held = self.held(asked)
        done = await self.owned.complete(*(Completion(*each) for each in asked.items()), now=self.now)
        assert set(done) == {run_id for run_id in held if self.runs[run_id].cancel != "replaced"}
        for run_id, token in asked.items():
            run = self.runs[run_id]
            if run_id in done:
                run.become("gone", "run_completed")
            elif run.cancel == "replaced" and run.token == token:
                run.become("gone", "run_cancelled")

    async def fail(self) -> None:
        permanent, retry_after_s = self.dice.random() < 0.2, self.dice.choice([0.0, 2.0, None])
        asked = self.some_leases()
        held = self.held(asked)
        failures = [Failure(*each, "boom", permanent, retry_after_s) for each in asked.items()]
        ended = {end.run_id: end for end in await self.owned.fail(*failures, now=self.now)}
        assert set(ended) == held
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
        expected = run.fate(self.jobs[run.job_id].state, "retried", permanent=permanent or run.attempt == MAX_ATTEMPTS)
        assert end.outcome == expected
        state = {"retried": "pending", "held": "held", "dead": "dead", "cancelled": "gone"}[expected]
        run.become(state, f"run_{expected}")
        run.start_by = None
        row = await self.owned.run(end.run_id)
        if row is not None and row.due_at is not None:
            assert self.now <= row.due_at <= self.now + timedelta(seconds=2**run.attempt)
            run.due_at = row.due_at  # the one thing that the model cannot know

    async def release(self) -> None:
        asked = self.some_leases()
        held = self.held(asked)
        assert set(await self.owned.release(*(HeldLease(*each) for each in asked.items()), now=self.now)) == held
        for run_id in held:
            self.give_back(self.runs[run_id])

    async def snooze(self) -> None:
        asked = self.some_leases()
        held = self.held(asked)
        delay_s = self.dice.choice([3.0, 30.0])
        snoozed = await self.owned.snooze(*(Snooze(*each, delay_s) for each in asked.items()), now=self.now)
        assert {each.run_id for each in snoozed} == held
        for each in snoozed:
            run = self.runs[each.run_id]
            assert each.outcome == run.fate(self.jobs[run.job_id].state, "released")
            run.due_at, run.start_by = self.now + timedelta(seconds=delay_s), None
            assert each.due_at == (run.due_at if each.outcome == "released" else None)
            self.give_back(run)

    def give_back(self, run: ModelRun) -> None:
        run.attempt -= 1
        fate = run.fate(self.jobs[run.job_id].state, "released")
        run.become({"held": "held", "cancelled": "gone", "released": "pending"}[fate], f"run_{fate}")

    def of_job(self, job_id: UUID, *states: str) -> list[UUID]:
        return [run_id for run_id, run in self.runs.items() if run.job_id == job_id and run.state in states]

    def state_of(self, job_id: UUID) -> str | None:
        return self.jobs[job_id].state if job_id in self.jobs else None

    async def pause(self) -> None:
        job_id = self.some_job()
        expected = self.of_job(job_id, "pending") if self.state_of(job_id) == "active" else []
        assert set(await self.owned.pause(job_id, now=self.now)) == set(expected)
        for run_id in expected:
            self.runs[run_id].become("held", "run_held")
        if self.state_of(job_id) == "active":
            self.jobs[job_id].become("paused", "job_paused")

    async def resume(self) -> None:
        job_id = self.some_job()
        held = self.of_job(job_id, "held") if self.state_of(job_id) == "paused" else []
        skipped = self.dice.choice([None, *held])
        async with owner_transaction(self.owned.pool, self.owned.fence) as tx:
            waiting = await resume_jobs(tx, [Resumption(job_id, None, skipped, None, None)], now=self.now)
        assert {run.run_id for run in waiting} == set(held) - {skipped}
        for run_id in held:
            if run_id == skipped:
                self.runs[run_id].become("gone", "run_skipped")
            else:
                self.runs[run_id].become("pending", "run_scheduled")
        if self.state_of(job_id) == "paused":
            self.jobs[job_id].cursor = None
            self.jobs[job_id].become("active", "job_resumed")

    async def delete(self) -> None:
        job_id = self.some_job()
        dropped = await self.owned.delete(job_id)
        live = self.state_of(job_id) in ("active", "paused")
        assert set(dropped) == set(self.of_job(job_id, "pending", "held") if live else [])
        for run_id in dropped:
            self.runs[run_id].become("gone", "run_cancelled")
        if live:
            self.jobs[job_id].cursor = None
            self.jobs[job_id].become("deleted", "job_deleted")

    async def cancel(self) -> None:
        asked = self.some_runs()[:2]
        cancelled = {each.run_id: each.outcome for each in await self.owned.cancel(*asked, now=self.now)}
        live = {run_id: self.runs[run_id] for run_id in asked if self.runs[run_id].state not in ("gone", "dead")}
        assert cancelled == {
            run_id: "requested" if run.state == "leased" else "cancelled" for run_id, run in live.items()
        }
        for run in live.values():
            run_model.cancel(run, "cancelled")

    async def replay(self) -> None:
        dead = [run_id for run_id, run in self.runs.items() if run.state == "dead"]
        asked = self.dice.sample(dead, min(len(dead), 2)) + self.some_runs()[:1]
        asked = list(dict.fromkeys(asked))
        due_at = self.dice.choice([None, self.now + timedelta(seconds=5)])
        replayed = await self.owned.replay(*(Replay(run_id, due_at) for run_id in asked), now=self.now)
        again = {run_id for run_id in asked if run_id in dead and self.job_of(run_id).state != "deleted"}
        assert set(replayed.run_ids) == again
        assert {run.run_id for run in replayed.waiting} == {
            run_id for run_id in again if self.job_of(run_id).state == "active"
        }
        for run_id in again:
            run, job = self.runs[run_id], self.job_of(run_id)
            state, event = ("held", "run_held") if job.state == "paused" else ("pending", "run_scheduled")
            run.become(state, event)
            run.attempt, run.due_at, run.start_by = 0, due_at or self.now, None
            run.overlap, run.timeout = job.overlap, job.timeout

    def job_of(self, run_id: UUID) -> ModelJob:
        return self.jobs[self.runs[run_id].job_id]

    async def admit(self) -> None:
        asked = self.some_runs()
        admission = await self.owned.admit(*asked, now=self.now)
        ready, waiting = run_model.admit(self.runs, asked, self.now)
        assert (set(admission.ready), set(admission.waiting)) == (ready, waiting)
        assert set(admission.over) == set(asked) - ready - waiting

    async def skip_late(self) -> None:
        asked = self.some_runs()
        late = {run_id for run_id in asked if self.runs[run_id].is_late(self.now)}
        assert set(await self.owned.skip_late(*asked, now=self.now)) == late
        for run_id in late:
            self.runs[run_id].become("gone", "run_skipped")

    async def edit(self) -> None:
        """To a definition that fires soon, maybe when the old one did: its run is replaced, or changed in place."""
        job_id = self.some_job()
        if job_id not in self.jobs:
            return
        job, partition = self.jobs[job_id], self.owned.fence.partition
        fires = [self.runs[job.cursor].scheduled_for] if job.cursor else []
        fire = self.dice.choice([*fires, self.now + timedelta(seconds=3), None])
        run_id = run_id_for(job_id, fire, partition) if fire else None
        edit = self.owned.edit_of(self.owned.new_job(), fire)._replace(
            job_id=job_id,
            max_attempts=MAX_ATTEMPTS,
            replaced_run_id=job.cursor,
            run_id=run_id,
            policies=Policies(self.dice.choice([job.overlap, *run_model.OVERLAPS]), 20.0, None),
        )
        await self.owned.update(edit, now=self.now)
        if job.state == "deleted":
            return
        if job.overlap == ALLOW:
            self.live_at_edit[job_id] = set(self.of_job(job_id, "leased"))
        job.overlap, job.timeout, job.start_deadline = edit.policies.overlap, timedelta(seconds=20), None
        job.edited = True
        job.become(job.state, "job_updated")
        self.replace_cursor(job_id, job, run_id, fire)
        run_model.change_overlap(self.runs, job_id, job.overlap, self.now)

    def replace_cursor(self, job_id: UUID, job: ModelJob, run_id: UUID | None, fire: datetime | None) -> None:
        old = self.runs[job.cursor] if job.cursor else None
        fresh = old is not None and old.state in ("pending", "held") and old.token == 0
        if run_id is not None and fire is not None and run_id != job.cursor:
            made = ModelRun.of(job_id, job, fire)
            if job.state == "paused":
                made.state, made.told = "held", [(made.version, "run_held")]
            before = self.runs.get(run_id)
            made.told = (before.told if before else []) + made.told
            self.runs[run_id] = made
        if old is not None and fresh:
            if run_id == job.cursor:
                old.overlap, old.timeout, old.start_by = job.overlap, job.timeout, None
                old.become(old.state, "run_held" if old.state == "held" else "run_scheduled")
            else:
                old.become("gone", "run_cancelled")
        job.cursor = run_id


def seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


@pytest.mark.parametrize("seed", SEEDS)
async def test_any_order_of_calls_goes_as_the_model_and_is_told_without_a_gap(owned: OwnedPartition, seed: int) -> None:
    life = Life(owned, seed)
    for _ in range(STEPS):
        await life.step()

    told = await owned.told()
    for run_id, run in life.runs.items():
        assert [(each.version, each.event) for each in told.pop(run_id)] == run.told
    for job_id, job in life.jobs.items():
        assert [(each.version, each.event) for each in told.pop(job_id)] == list(enumerate(job.told, 1))
    assert told == {}

    assert await rows_of(owned) == {
        run_id: (run.state, run.attempt, run.token, run.version, run.expires_at, run.cancel, run.start_by)
        for run_id, run in life.runs.items()
        if run.state != "gone"
    }
    # A life in which little happened would prove little; which of the ten kinds it lacks is up to the dice.
    assert len({event for run in life.runs.values() for _, event in run.told}) >= 8


async def rows_of(owned: OwnedPartition) -> dict[UUID, tuple]:
    async with session(owned.pool) as conn:
        rows = await conn.execute("""
            SELECT run_id, state, attempt, lease_token, version, lease_expires_at, cancel_reason, start_by FROM runs
            UNION ALL SELECT run_id, 'dead', attempt, lease_token, version, NULL, NULL, NULL FROM dead_runs
        """)
        return {row[0]: tuple(row[1:]) for row in await rows.fetchall()}
