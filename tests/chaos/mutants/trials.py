"""The trials: what is done to an installation, so that a mutant shows. The unmutated product passes each of them.

A trial does not judge: it goes on when something does not come, and leaves the verdict to the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from fencepost import JobSpec, RunContext, Worker, every
from fencepost.models import Failure
from tests.chaos.job_rules import Edited, Still
from tests.chaos.links import Link
from tests.chaos.mutants.patches import TrialName
from tests.chaos.mutants.stand import Stand
from tests.chaos.readouts import read_holdings

FREEZE_DEADLINE_S = 40.0
FENCED_WITHIN_S = 10.0
FIRST_LEASE_S = 8.0

ToKafka = Mapping[str, Link]  # by role, of those that may be cut off


class TrialPlan(NamedTuple):
    """run: what is done. roles: which it needs, for none that idles should cost a start."""

    run: Callable[[Stand, ToKafka], Coroutine[Any, Any, None]]
    roles: tuple[str, ...] = ("streams-0", "api", "relay")


async def late_worker(stand: Stand, _: ToKafka) -> None:
    """A worker sleeps through its lease, wakes while another one has the run, and when a third has completed it."""
    stand.one_off()
    late = await stand.lease_one("late", visibility_s=1)
    second = late and await stand.lease_one("second")
    if late is None or second is None:
        return
    await stand.complete(late, "late")
    stand.hint_again()
    await stand.lease_one("third", within_s=1)
    async with stand.client("second") as client:
        failure = Failure(second.run_id, second.lease_token, "on purpose", retry_after_seconds=6)
        await client.fail_many([failure], retry_for_s=0)
    stand.hint_again()
    third = await stand.lease_one("third")
    if third is not None:
        await stand.complete(third, "third")
    await stand.complete(late, "late")
    await stand.complete(second, "second")


async def long_handler(stand: Stand, _: ToKafka) -> None:
    """A handler that is at work when the lease would be over without its heartbeat; nobody else gets the run."""
    stand.one_off()
    run = await stand.lease_one("patient", visibility_s=FIRST_LEASE_S)
    if run is None:
        return
    async with stand.client("patient") as client:
        await client.heartbeat(run.run_id, run.lease_token, visibility_s=60)
    # Past the end that the lease had first. Where all is well nothing happens then, so there is nothing to wait for.
    await asyncio.sleep(FIRST_LEASE_S + 0.5)
    await stand.finish(run, "patient")
    again = await stand.lease_one("another", within_s=3)
    if again is not None:
        await stand.finish(again, "another")


async def policies(stand: Stand, _: ToKafka) -> None:
    """Recurring jobs with every policy, one that is paused, one that is edited, and a queue's pause."""
    async with working(stand):
        for overlap in ("allow", "skip", "replace"):
            stand.recur(every(1), overlap=overlap, payload={"work_s": 2.3})
        paused, edited, witness = stand.recur(every(1)), stand.recur(every(3)), stand.recur(every(1))
        await edit(stand, edited, witness)
        await pause_job(stand, paused, witness)
        await pause_queue(stand, witness)


async def edit(stand: Stand, job: UUID, witness: UUID) -> None:
    """While its pending occurrence is still to come, and has its run: that is what the edit is to take away.

    It would start before a later run of the witness's, so that one is waited for: what is paused next holds nothing up.
    """
    await stand.wait_for(lambda: _cursor(stand, job) > datetime.now(UTC) + timedelta(seconds=1))
    pending, before = _cursor(stand, job), stand.job_state(job)
    stand.producer.update(job, JobSpec(queue=stand.queue, schedule=every(3600)))
    stand.producer.flush()
    await stand.wait_for(lambda: stand.job_state(job) > before)
    now = datetime.now(UTC)
    stand.edited.append(Edited(str(job), now, now + timedelta(minutes=10)))
    await stand.wait_for(lambda: _cursor(stand, witness) > pending)
    later = _cursor(stand, witness)
    await stand.wait_for(lambda: stand.is_finished(witness, later))


async def pause_job(stand: Stand, job: UUID, witness: UUID) -> None:
    stand.producer.pause(job)
    stand.producer.flush()
    await stand.wait_for(lambda: stand.is_applied("PauseJob", job))
    since = datetime.now(UTC)
    await two_occurrences(stand, witness)
    stand.still.append(Still(frozenset({str(job)}), since, datetime.now(UTC)))
    stand.producer.resume(job)
    stand.producer.flush()


async def pause_queue(stand: Stand, witness: UUID) -> None:
    async with stand.client("operator") as client:
        await client.pause_queue(stand.queue)
        since = datetime.now(UTC)
        await two_occurrences(stand, witness)
        stand.still.append(Still(frozenset(stand.recurring), since, datetime.now(UTC)))
        await client.resume_queue(stand.queue)


async def outages(stand: Stand, to_kafka: ToKafka) -> None:
    """A relay is cut off from Kafka and killed, an API is killed with what it was hinted, a command comes again."""
    installation, relay_to_kafka = stand.installation, to_kafka["relay"]
    paused = stand.one_off(due_in_s=6)
    for command, send in (("PauseJob", stand.producer.pause), ("ResumeJob", stand.producer.resume)):
        send(paused)
        stand.producer.flush()
        await stand.wait_for(partial(stand.is_applied, command, paused))
    stand.command_again("PauseJob", paused)

    relay_to_kafka.silence()
    stand.faults.append("relay: silent link to Kafka")
    for _ in range(20):
        stand.one_off(due_in_s=0.5)
    async with working(stand):
        await stand.wait_for(lambda: stand.finished() >= 20)
        await stand.wait_for(lambda: not stand.ask("SELECT 1 FROM runs WHERE due_at < now()"))
    stand.faults.append("kill -9 relay, api")
    installation.kill("relay")
    relay_to_kafka.cut()  # what it had sent is lost with it
    relay_to_kafka.open()
    await asyncio.to_thread(installation.start, "relay")

    stand.one_off()
    await stand.wait_for(lambda: bool(stand.ask("SELECT 1 FROM runs WHERE due_at < now() - interval '0.3 s'")))
    installation.kill("api")
    await asyncio.to_thread(installation.start, "api")
    async with working(stand):
        await stand.wait_for(lambda: stand.finished() >= len(stand.one_offs))


async def frozen_owner(stand: Stand, to_kafka: ToKafka) -> None:
    """An owner stands still until another has all partitions, and wakes. Every partition has something to decide.

    It wakes cut off from Kafka: that the group has gone on without it only the ledger can tell it. Else what it gets
    back may be what it had, or not, and only in the first case is there anything left to see of what it did meanwhile.
    """
    installation, its_link = stand.installation, to_kafka["streams-0"]
    stand.recur_in_every_partition(every(2))
    async with working(stand):
        await stand.wait_for(installation.is_shared, FREEZE_DEADLINE_S)
        await stand.finish_some()
        stand.faults.append("SIGSTOP streams-0")
        installation.freeze("streams-0")
        await stand.wait_for(lambda: set(installation.holders().values()) == {"streams-1"}, FREEZE_DEADLINE_S)
        await stand.finish_some()
        its_link.silence()
        installation.thaw("streams-0")
        await stand.wait_for(lambda: installation.said_by("streams-0") == [], FENCED_WITHIN_S)
        stand.holdings.append(read_holdings(installation))
        its_link.open()
        await stand.wait_for(installation.is_shared, FREEZE_DEADLINE_S)
        await stand.finish_some()


async def returning_owner(stand: Stand, _: ToKafka) -> None:
    """An owner ends, jobs are created while another one has everything, and it returns with the state that it had."""
    installation = stand.installation
    await stand.wait_for(installation.is_shared, FREEZE_DEADLINE_S)
    await asyncio.to_thread(installation.stop, "streams-0")
    await stand.wait_for(lambda: set(installation.holders().values()) == {"streams-1"}, FREEZE_DEADLINE_S)
    stand.recur_in_every_partition(every(2))
    async with working(stand):
        await stand.wait_for(lambda: stand.finished() >= len(stand.recurring))
        await asyncio.to_thread(installation.start, "streams-0")
        await stand.wait_for(installation.is_shared, FREEZE_DEADLINE_S)
        [(now,)] = stand.ask("SELECT now() + interval '4 s'")  # in which all jobs fire
        said = "SELECT 1 FROM partitions HAVING min(decided_through) > %s"
        await stand.wait_for(lambda: bool(stand.ask(said, now)), FREEZE_DEADLINE_S)
        stand.undecided |= stand.undecided_now()


TRIALS: dict[TrialName, TrialPlan] = {
    "late worker": TrialPlan(late_worker),
    "long handler": TrialPlan(long_handler),
    "policies": TrialPlan(policies),
    "outages": TrialPlan(outages),
    "frozen owner": TrialPlan(frozen_owner, ("streams-0", "streams-1", "api", "relay")),
    "returning owner": TrialPlan(returning_owner, ("streams-0", "streams-1", "api", "relay")),
}


@asynccontextmanager
async def working(stand: Stand) -> AsyncIterator[None]:
    """With one of the SDK's workers, which drains in the end."""

    async def handler(context: RunContext) -> None:
        await stand.handle("worker", context, (context.payload or {}).get("work_s", 0.01))

    async with stand.client("worker") as client:
        worker = Worker(client, stand.queue, handler, slots=50, visibility_s=20, worker_id="worker", drain_s=8)
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            await worker.drain()
            await running


async def two_occurrences(stand: Stand, witness: UUID) -> None:
    """Until two of the witness's have been decided. It fires every second, as what is paused would."""
    before = _cursor(stand, witness)
    await stand.wait_for(lambda: _cursor(stand, witness) >= before + timedelta(seconds=2))


def _cursor(stand: Stand, job: UUID) -> datetime:
    """The occurrence that is pending; long ago where there is no such job yet."""
    found: list[tuple[datetime]] = stand.ask("SELECT next_fire_at FROM jobs WHERE job_id = %s", job)
    return found[0][0] if found else datetime.min.replace(tzinfo=UTC)
