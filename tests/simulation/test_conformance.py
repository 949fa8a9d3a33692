"""The model of Postgres does what Postgres does: the product's statements, one after the other and amid each other."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from ledger.admissions import admit_runs, skip_late
from ledger.advances import Advance, advance_jobs
from ledger.cancellations import owners_of_runs
from ledger.completions import Completion, Failure, complete_runs, expire_leases, fail_runs, lease_expiries, what_ended
from ledger.connection import Pool
from ledger.fence import say_decided
from ledger.lease_requests import recall_leases
from ledger.leases import Beat, HeldLease, LeaseAsk, extend_leases, lease_runs, release_runs
from ledger.outbox import last_unpublished, oldest_unpublished
from ledger.partitions import is_told_since
from ledger.runs import find_due, read_run, read_runs
from schemas.commands import (
    CancelRun,
    Command,
    CreateJob,
    DeleteJob,
    JobSpec,
    PauseJob,
    ResumeJob,
    TriggerJob,
    UpdateJob,
)
from schemas.ids import partition_of_job, run_id_for
from streams.command_batch import apply_commands
from tests.ledger_fixtures import PARTITIONS
from tests.simulation.rows import Job, Run
from tests.simulation.scheduler import START
from tests.simulation.twins import PARTITION, Act, Twins

STEPS = 60
SECOND = timedelta(seconds=1)
QUEUES = [("acme", "mail"), ("acme", "sms")]
Draw = Callable[[], Act]


class Doings:
    """What can be done to the jobs of twin ledgers, drawn from a seed."""

    def __init__(self, twins: Twins, seed: int) -> None:
        self.twins, self.random = twins, Random(seed)
        self._tables = twins.model.shard.tables

    @property
    def now(self) -> datetime:
        return self.twins.now

    def new_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128))

    def new_job_id(self) -> UUID:
        while partition_of_job(job_id := self.new_id(), PARTITIONS) != PARTITION:
            pass
        return job_id

    def jobs(self) -> list[Job]:
        return list(self._tables["jobs"].values())

    def runs(self, *states: str) -> list[Run]:
        return [run for run in self._tables["runs"].values() if not states or run.state in states]

    def one_job(self) -> Job:
        return self.random.choice(self.jobs())

    def some(self, *states: str) -> list[Run]:
        """A few runs in one of the states, in the order of their ids."""
        runs = self.runs(*states)
        chosen = self.random.sample(runs, min(len(runs), self.random.randrange(1, 4)))
        return sorted(chosen, key=lambda run: run.run_id.int)

    # Of the owner.

    def command(self, kind: type[Command], job_id: UUID, **fields: Any) -> Command:
        return kind(command_id=self.new_id(), tenant="acme", job_id=job_id, issued_at=self.now, **fields)

    def apply(self, *commands: Command) -> Act:
        async def body(tx: Any) -> Any:
            effects = await apply_commands(tx, commands)
            return [tuple(each) for each in effects.outcomes], [tuple(each) for each in effects.events]

        return Act(" and ".join(type(command).__name__ for command in commands), body)

    def create(self, **spec: Any) -> CreateJob:
        random = self.random
        schedule: dict[str, Any] = {"everySeconds": random.randrange(2, 9)}
        if random.random() < 0.3:
            schedule = {"delaySeconds": random.randrange(5)}
        drawn: dict[str, Any] = {
            "lane": random.choice(["high", "normal", "low"]),
            "overlap": random.choice(["allow", "skip", "replace"]),
            "timeout_seconds": random.choice([None, 3.0]),
            "start_deadline_seconds": random.choice([None, 4.0]),
            "retry_backoff": random.choice(["exponential", "linear", "fixed"]),
        }
        job = JobSpec(queue=random.choice(["mail", "sms"]), max_attempts=3, **{"schedule": schedule, **drawn, **spec})
        return self.command(CreateJob, self.new_job_id(), spec=job)  # type: ignore[return-value]

    def edit(self, job: Job, **changes: Any) -> UpdateJob:
        """Of anything but its overlap, as in the simulation."""
        kept = {
            "overlap": ("allow", "skip", "replace")[job.overlap],
            "schedule": json.loads(job.definition)["schedule"],
        }
        spec = JobSpec(**{"queue": job.queue, "max_attempts": 3, **kept, **changes})
        return self.command(UpdateJob, job.job_id, spec=spec)  # type: ignore[return-value]

    def commands(self) -> Act:
        """A batch of them, about whatever there is."""
        random = self.random
        batch: list[Command] = []
        for _ in range(random.randrange(1, 4)):
            job = self.one_job()
            kind = random.choice([PauseJob, ResumeJob, TriggerJob, PauseJob, ResumeJob, TriggerJob, DeleteJob])
            what = random.random()
            if what < 0.15:
                batch.append(self.edit(job, schedule={"everySeconds": random.randrange(2, 9)}))
            elif what < 0.25:
                batch.append(self.edit(job, queue=random.choice(["mail", "sms"])))
            elif what < 0.4 and self.runs():
                run = random.choice(self.runs())
                batch.append(self.command(CancelRun, run.job_id, run_id=run.run_id))
            elif what < 0.6:
                batch.append(self.create())
            else:
                batch.append(self.command(kind, job.job_id))
        return self.apply(*batch)

    def advance(self, jobs: list[Job] | None = None) -> Act:
        """Jobs whose occurrence has come, by one or over some."""
        come = [job for job in self.jobs() if job.next_fire_at and job.next_fire_at <= self.now]
        moves = [self._move(job) for job in (come if jobs is None else jobs) if "everySeconds" in job.definition]
        now = self.now
        return Act("advance", lambda tx: advance_jobs(tx, moves, now=now))

    def _move(self, job: Job) -> Advance:
        every, fired_at = timedelta(seconds=json.loads(job.definition)["schedule"]["everySeconds"]), job.next_fire_at
        assert fired_at is not None
        skipped = self.random.randrange(3)
        fire = fired_at + every * (skipped + 1)
        run_id = run_id_for(job.job_id, fire, PARTITION)
        over: tuple[Any, ...] = ()
        if skipped:
            doomed = run_id_for(job.job_id, fired_at, PARTITION)
            over = (doomed, "catch-up latest", fired_at + every, fired_at + every * skipped, skipped, "catch-up latest")
        version = job.version - (self.random.random() < 0.1)
        return Advance(job.job_id, version, fired_at, fire, run_id, fire, *over)

    def _of_runs(
        self, name: str, work: Callable[..., Awaitable[Any]], runs: list[Run], later: timedelta = timedelta()
    ) -> Act:
        run_ids, now = [run.run_id for run in runs], self.now + later
        return Act(name, lambda tx: work(tx, run_ids, now=now))

    def admit(self, runs: list[Run] | None = None) -> Act:
        return self._of_runs("admit", admit_runs, self.some("pending") if runs is None else runs)

    def skip_late(self, runs: list[Run] | None = None, later: timedelta = timedelta()) -> Act:
        return self._of_runs("skip late", skip_late, self.some("pending") if runs is None else runs, later)

    def expire(self, runs: list[Run] | None = None, later: timedelta = timedelta()) -> Act:
        async def expire(tx: Any, run_ids: list[UUID], now: datetime) -> Any:
            return [end[:2] for end in await expire_leases(tx.conn, run_ids, now=now)]

        return self._of_runs("expire", expire, self.some("leased") if runs is None else runs, later)

    # Of the API.

    def _told(self, name: str, runs: list[Run], body: Callable[[Any], Awaitable[Any]]) -> Act:
        return Act(name, body, tuple(run.run_id for run in runs))

    def lease(self, runs: list[Run] | None = None, visibility_s: float | None = None) -> Act:
        is_stale = runs is None and self.random.random() < 0.05
        runs = self.some("pending") if runs is None else runs
        lasts_s = visibility_s or self.random.choice([3.0, 9.0])
        epoch = self.twins.fence.epoch - is_stale
        request_id, now = self.new_id(), self.now
        asks = [LeaseAsk(run.run_id, epoch, "worker", lasts_s, request_id) for run in runs]
        return self._told("lease", runs, lambda conn: lease_runs(conn, asks, now=now))

    def _token(self, run: Run) -> int:
        return run.lease_token - (self.random.random() < 0.05)

    def complete(self, runs: list[Run] | None = None) -> Act:
        runs, now = self.some("leased") if runs is None else runs, self.now
        done = [Completion(run.run_id, self._token(run), '{"n":1}', "acme") for run in runs]
        return self._told("complete", runs, lambda conn: complete_runs(conn, done, now=now))

    def fail(self, runs: list[Run] | None = None) -> Act:
        runs, now = self.some("leased") if runs is None else runs, self.now
        retry_after_s = [self.random.choice([None, 0.0, 2.5]) for _ in runs]
        failed = [
            Failure(run.run_id, self._token(run), "broken", self.random.random() < 0.2, after_s, "acme")
            for run, after_s in zip(runs, retry_after_s, strict=True)
        ]

        async def body(conn: Any) -> Any:
            return [end[:2] for end in await fail_runs(conn, failed, now=now)]

        return self._told("fail", runs, body)

    def release(self, runs: list[Run] | None = None) -> Act:
        runs, now = self.some("leased") if runs is None else runs, self.now
        held = [HeldLease(run.run_id, self._token(run), "acme") for run in runs]
        return self._told("release", runs, lambda conn: release_runs(conn, held, now=now))

    def beat(self, runs: list[Run] | None = None) -> Act:
        runs, now = self.some("leased") if runs is None else runs, self.now
        beats = [Beat(run.run_id, self._token(run), 5.0, "acme") for run in runs]
        return self._told("beat", runs, lambda conn: extend_leases(conn, beats, now=now))

    def look(self) -> Act:
        """What is read of runs that are there, and of some that are not."""
        known = [run.run_id for run in self.some("pending", "leased", "held")]
        dead = list(self._tables["dead_runs"])[:2]
        requests, now = list(self._tables["lease_requests"])[-2:], self.now
        run_ids = [*known, *dead, self.new_id()]

        async def body(conn: Any) -> Any:
            return (
                await read_runs(conn, run_ids),
                [await read_run(conn, run_id) for run_id in run_ids],
                sorted((await owners_of_runs(conn, run_ids)).items()),
                sorted((await lease_expiries(conn, run_ids)).items()),
                [await what_ended(conn, run_id) for run_id in run_ids],
                [await recall_leases(conn, request_id, now=now) for request_id in requests],
                await find_due(conn, QUEUES, 50, now=now),
            )

        return Act("look", body, (run_id_for(self.one_job().job_id, START, PARTITION),))

    def any(self) -> Act:
        if not self.jobs():
            return self.apply(self.create(), self.create())
        done: list[Draw] = [self.commands, self.commands, self.advance, self.look]
        if self.runs("pending"):
            done += [self.lease, self.lease, self.admit, self.skip_late]
        if self.runs("leased"):
            done += [self.complete, self.fail, self.release, self.beat, self.expire]
        return self.random.choice(done)()


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_done_one_after_the_other_comes_to_the_same(ledger_pool: Pool, seed: int) -> None:
    twins = Twins(ledger_pool, START)
    await twins.take_over("owner")
    doings = Doings(twins, seed)
    for _ in range(STEPS):
        twins.now += doings.random.random() ** 2 * 3 * SECOND
        act = doings.any()
        await twins.do(act)
        await twins.compare(act.name)


class Scene:
    """A job with a leased run, one that is due beside it, and its pending occurrence: what two acts then meet on."""

    def __init__(self, doings: Doings, job_id: UUID) -> None:
        self._doings, self.job_id = doings, job_id

    @classmethod
    async def made(cls, doings: Doings, overlap: str) -> Scene:
        twins = doings.twins
        spec: dict[str, Any] = {"overlap": overlap, "start_deadline_seconds": 4.0, "timeout_seconds": None}
        create = doings.create(schedule={"everySeconds": 10}, lane="low", **spec)
        scene = cls(doings, create.job_id)
        await twins.do(doings.apply(create))
        twins.now += 10 * SECOND
        await twins.do(doings.lease(scene.runs(), visibility_s=LEASED_S))
        await twins.do(doings.advance([scene.job]))
        await twins.do(doings.apply(doings.command(TriggerJob, scene.job_id)))
        twins.now += 10 * SECOND
        return scene

    @property
    def job(self) -> Job:
        return next(job for job in self._doings.jobs() if job.job_id == self.job_id)

    def runs(self, *states: str) -> list[Run]:
        runs = [run for run in self._doings.runs(*states) if run.job_id == self.job_id]
        return sorted(runs, key=lambda run: run.run_id.int)

    def act(self, name: str) -> Act:
        doings, job = self._doings, self.job
        commands: dict[str, Callable[[], Command]] = {
            "pause": lambda: doings.command(PauseJob, job.job_id),
            "delete": lambda: doings.command(DeleteJob, job.job_id),
            "trigger": lambda: doings.command(TriggerJob, job.job_id),
            "edit": lambda: doings.edit(job, lane="high"),
            "reschedule": lambda: doings.edit(job, schedule={"everySeconds": 7}),
            "cancel": lambda: doings.command(CancelRun, job.job_id, run_id=self.runs("leased")[0].run_id),
        }
        if name in commands:
            return doings.apply(commands[name]())
        draw: Callable[[list[Any]], Act] = getattr(doings, name)
        if name == "advance":
            return doings.advance([job])
        if name == "expire":
            return doings.expire(self.runs("leased"), later=LEASED_S * SECOND)
        if name == "skip_late":
            return doings.skip_late(self.runs("pending"), later=5 * SECOND)
        return draw(self.runs("leased" if name in OF_LEASES else "pending"))


LEASED_S = 60.0
OF_LEASES = ("complete", "fail", "release", "beat", "expire")
ACTS = [
    *("pause", "delete", "trigger", "edit", "reschedule", "cancel", "advance", "admit", "skip_late", "lease"),
    *OF_LEASES,
]


@pytest.mark.parametrize("overlap", ["allow", "replace"])
@pytest.mark.parametrize("first", ACTS)
async def test_what_is_done_amid_another_transaction_comes_to_the_same(
    ledger_pool: Pool, first: str, overlap: str
) -> None:
    twins = Twins(ledger_pool, START)
    await twins.take_over("owner")
    doings = Doings(twins, 1)
    for second in ACTS:
        scene = await Scene.made(doings, overlap)
        await twins.do_amid(scene.act(first), scene.act(second))
        await twins.compare(f"{second} amid {first}")


async def test_what_an_opening_asks_is_answered_alike(ledger_pool: Pool) -> None:
    twins = Twins(ledger_pool, START)
    await twins.take_over("a")
    first = twins.fence.epoch
    await twins.take_over("b")
    fence, doings = twins.fence, Doings(twins, 1)

    def asked(since: int, owner: str) -> Act:
        async def body(tx: Any) -> Any:
            is_empty = await last_unpublished(tx.conn) is None, await oldest_unpublished(tx.conn) is None
            return await is_told_since(tx.conn, fence, since, owner), is_empty

        return Act(f"asked since {since} of {owner}", body)

    for since, owner in ((first, "a"), (first, "b"), (fence.epoch, "b"), (first - 1, "a")):
        await twins.do(asked(since, owner))
    await twins.do(doings.apply(doings.create()))
    assert await twins.do(asked(first, "a")) == (True, (False, False))


async def test_how_far_decisions_are_is_said_alike(ledger_pool: Pool) -> None:
    twins = Twins(ledger_pool, START)
    await twins.take_over("a")
    fence, later = twins.fence, datetime.now(UTC) + timedelta(days=1)
    said = [
        (replace(fence, owner="another"), later),
        (replace(fence, epoch=fence.epoch - 1), later),
        *[(fence, later + n * SECOND) for n in (0, 0, 1, -1)],
    ]
    for claimed, through in said:
        expected = await say_decided(ledger_pool, {claimed: through})
        came = twins.model.spawn(say_decided(twins.model.pool, {claimed: through}))  # type: ignore[arg-type]
        twins.model.settle()
        assert came == [expected], (claimed, through)
