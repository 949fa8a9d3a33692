"""What commands make of jobs and runs: create, pause, resume, delete, trigger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.commands import read_outcomes
from ledger.completions import Failure, fail_runs
from ledger.connection import Pool, session
from ledger.fence import Fence, api_transaction, hold_job_states, owner_transaction, take_over
from ledger.jobs import Job, read_jobs
from ledger.leases import LeaseAsk, lease_runs
from schemas.commands import COMMANDS, CancelRun, Command
from schemas.ids import new_id, partition_of_job, run_id_for
from streams.command_batch import APPLIERS, apply_commands, waves
from streams.effects import Effects
from streams.run_commands import triggered_run_id
from tests.ledger.owned_partition import until_someone_waits_for_a_lock
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import cancel, create, delete, job_on, pause, resume, trigger
from tests.streams.ledger_dump import fetch

PARTITION = 5
PAST = datetime(2026, 1, 1, tzinfo=UTC)


class Partition:
    """A partition that we own, to apply commands to."""

    def __init__(self, pool: Pool, fence: Fence) -> None:
        self.pool, self.fence = pool, fence

    async def apply(self, *commands: Command) -> Effects:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await apply_commands(tx, commands)

    async def job(self, job_id: UUID) -> Job:
        async with session(self.pool) as conn:
            return (await read_jobs(conn, [job_id]))[job_id]

    async def runs(self, job_id: UUID) -> list[tuple[str, datetime, datetime]]:
        """State, scheduled_for and due_at of its runs, in order."""
        return await fetch(
            self.pool,
            "SELECT state, scheduled_for, due_at FROM runs WHERE job_id = %s ORDER BY scheduled_for",
            job_id,
        )

    async def states(self, job_id: UUID) -> list[str]:
        return [state for state, _, _ in await self.runs(job_id)]

    async def outcome(self, command: Command) -> str:
        async with session(self.pool) as conn:
            return (await read_outcomes(conn, [command.command_id]))[command.command_id].outcome


@pytest_asyncio.fixture
async def partition(ledger_pool: Pool) -> AsyncIterator[Partition]:
    yield Partition(ledger_pool, (await take_over(ledger_pool, PARTITION, "me")).fence)


@pytest.fixture
def job_id() -> UUID:
    return job_on(PARTITION)


def test_a_batch_is_cut_into_waves_that_keep_each_job_s_order() -> None:
    first, second = job_on(0), job_on(0)
    commands = [create(first), create(second), pause(first), resume(first), pause(second)]
    cut = waves(commands)
    assert [len(wave) for wave in cut] == [2, 2, 1]
    for job_id in (first, second):
        in_waves = [command for wave in cut for command in wave if command.job_id == job_id]
        assert in_waves == [command for command in commands if command.job_id == job_id]


async def test_a_created_job_has_its_first_run_pending(partition: Partition, job_id: UUID) -> None:
    effects = await partition.apply(create(job_id, {"runAt": "2100-06-01T08:00:00Z"}, payload='{"to":1}'))
    at = datetime(2100, 6, 1, 8, tzinfo=UTC)
    assert await partition.runs(job_id) == [("pending", at, at)]
    assert await fetch(partition.pool, "SELECT run_id FROM runs") == [run_id_for(job_id, at, PARTITION)]
    assert [event.type for event in effects.events] == ["job_created", "run_scheduled"]
    assert (await partition.job(job_id)).payload == '{"to":1}'


async def test_a_run_at_in_the_past_is_due_at_once(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, {"runAt": "2026-01-01T00:00:00Z"}))
    assert await partition.runs(job_id) == [("pending", PAST, PAST)]


async def test_a_delay_counts_from_when_the_command_was_issued(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, {"delaySeconds": 90.5}, issued_at=PAST))
    due = PAST + timedelta(seconds=90.5)
    assert await partition.runs(job_id) == [("pending", due, due)]


async def test_a_producer_whose_clock_is_ahead_does_not_delay_its_job(partition: Partition, job_id: UUID) -> None:
    before = datetime.now(UTC)
    await partition.apply(create(job_id, {"delaySeconds": 10}, issued_at=before + timedelta(days=1)))
    [(_, _, due)] = await partition.runs(job_id)
    assert abs(due - before - timedelta(seconds=10)) < timedelta(seconds=5)


async def test_an_issue_before_1970_cannot_send_a_cursor_before_what_timing_state_counts(
    partition: Partition, job_id: UUID
) -> None:
    await partition.apply(create(job_id, {"everySeconds": 60}, issued_at=datetime(1960, 1, 1, tzinfo=UTC)))
    assert (await partition.job(job_id)).next_fire_at == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)


async def test_a_cron_job_fires_by_the_clock_of_its_zone(partition: Partition, job_id: UUID) -> None:
    schedule = {"cron": "30 9 * * *", "zone": "America/New_York"}
    await partition.apply(create(job_id, schedule, issued_at=datetime(2026, 7, 1, 0, tzinfo=UTC)))
    assert (await partition.job(job_id)).next_fire_at == datetime(2026, 7, 1, 13, 30, tzinfo=UTC)


async def test_every_seconds_counts_from_the_creation(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, {"everySeconds": 45}, issued_at=PAST))
    assert (await partition.job(job_id)).next_fire_at == PAST + timedelta(seconds=45)


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 9 * * *", "endAt": "2020-01-01T00:00:00Z"}, "schedule"),
        ({"cron": "60 * * * *"}, "cron"),
        ({"cron": "0 9 * * *", "zone": "Mars/Olympus"}, "zone"),
        ({"everySeconds": -1}, "everySeconds"),
    ],
)
async def test_a_schedule_that_cannot_fire_is_rejected_with_its_field(
    partition: Partition, job_id: UUID, schedule: dict[str, object], field: str
) -> None:
    command = create(job_id, schedule)
    effects = await partition.apply(command)
    error = effects.rejected[command.command_id]
    assert error.code == "invalid_schedule"
    assert error.field is not None
    assert error.field.rpartition(".")[2] == field
    assert await partition.outcome(command) == "invalid_schedule"
    assert await fetch(partition.pool, "SELECT count(*) FROM jobs") == [0]


async def test_the_same_create_under_another_command_changes_nothing(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, payload="1"))
    again = create(job_id, payload="1")
    effects = await partition.apply(again)
    assert (effects.events, await partition.outcome(again)) == ([], "unchanged")
    assert len(await partition.runs(job_id)) == 1


async def test_a_create_with_another_definition_or_payload_conflicts(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, payload="1"))
    for other in (create(job_id, payload="2"), create(job_id, payload="1", lane="high")):
        effects = await partition.apply(other)
        assert effects.rejected[other.command_id].code == "job_conflict"


async def test_a_create_never_takes_another_tenant_s_job(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id))
    theirs = create(job_id, tenant="rival")
    effects = await partition.apply(theirs)
    assert effects.rejected[theirs.command_id].code == "job_conflict"
    assert (await partition.job(job_id)).tenant == "acme"


async def test_pausing_puts_pending_runs_aside_and_resuming_brings_them_back(
    partition: Partition, job_id: UUID
) -> None:
    await partition.apply(create(job_id))
    await partition.apply(pause(job_id))
    assert await partition.states(job_id) == ["held"]
    effects = await partition.apply(resume(job_id))
    assert await partition.states(job_id) == ["pending"]
    assert [event.type for event in effects.events] == ["job_resumed", "run_scheduled"]


async def test_an_occurrence_that_passed_during_the_pause_is_skipped_with_its_reason(
    partition: Partition, job_id: UUID
) -> None:
    await partition.apply(create(job_id, {"everySeconds": 3600}, issued_at=datetime.now(UTC)))
    await partition.apply(pause(job_id))
    await _let_the_cursor_pass(partition, job_id)
    await partition.apply(resume(job_id))
    [(state, scheduled_for, _)] = await partition.runs(job_id)
    assert state == "pending"
    assert scheduled_for > datetime.now(UTC)
    assert scheduled_for == (await partition.job(job_id)).next_fire_at
    assert await fetch(partition.pool, "SELECT reasons[1] FROM outbox WHERE event = 'run_skipped'") == ["paused"]


async def _let_the_cursor_pass(partition: Partition, job_id: UUID) -> None:
    """As if the job had been paused for ten hours: its held occurrence, nine hours ago, came after the pause."""
    at = datetime.now(UTC) - timedelta(hours=9)
    run_id = run_id_for(job_id, at, PARTITION)
    async with partition.pool.connection() as conn:
        await conn.execute("UPDATE jobs SET next_fire_at = %s, paused_at = %s", (at, at - timedelta(hours=1)))
        await conn.execute("UPDATE runs SET run_id = %s, scheduled_for = %s, due_at = %s", (run_id, at, at))


async def test_an_occurrence_that_was_due_before_the_pause_is_not_skipped(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, {"everySeconds": 3600}, issued_at=datetime.now(UTC) - timedelta(hours=2)))
    await partition.apply(pause(job_id))
    await partition.apply(resume(job_id))
    runs = await partition.runs(job_id)
    assert [state for state, _, _ in runs] == ["pending", "pending"]
    assert runs[0][1] < datetime.now(UTC) < runs[1][1]


async def test_a_one_off_that_came_due_during_the_pause_runs_after_it(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, {"delaySeconds": 0}))
    await partition.apply(pause(job_id), resume(job_id))
    assert await partition.states(job_id) == ["pending"]


async def test_deleting_drops_the_waiting_runs_and_leaves_a_tombstone(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id), trigger(job_id))
    await partition.apply(delete(job_id))
    assert await partition.runs(job_id) == []
    job = await partition.job(job_id)
    assert (job.state, job.next_fire_at) == ("deleted", None)
    again = create(job_id)
    effects = await partition.apply(again)
    assert effects.rejected[again.command_id].code == "job_conflict"


async def test_deleting_leaves_a_leased_run_to_its_worker(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, {"delaySeconds": 0}, issued_at=PAST))
    [run_id] = await fetch(partition.pool, "SELECT run_id FROM runs")
    async with api_transaction(partition.pool, [run_id]) as conn:
        assert await lease_runs(conn, [LeaseAsk(run_id, partition.fence.epoch, "w", 30)])
    await partition.apply(delete(job_id))
    assert await partition.states(job_id) == ["leased"]


async def test_a_trigger_makes_a_run_beside_the_schedule(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id, payload='"own"'))
    with_own, with_other = trigger(job_id), trigger(job_id, '"other"')
    await partition.apply(with_own, with_other)
    payloads = dict(await fetch(partition.pool, "SELECT run_id, payload FROM runs WHERE due_at <= now()"))
    assert payloads == {
        triggered_run_id(with_own, PARTITION): '"own"',
        triggered_run_id(with_other, PARTITION): '"other"',
    }
    assert len(await partition.runs(job_id)) == 3
    async with session(partition.pool) as conn:
        outcomes = await read_outcomes(conn, [with_own.command_id])
    assert outcomes[with_own.command_id].detail == str(triggered_run_id(with_own, PARTITION))


async def test_two_triggers_of_one_microsecond_are_two_runs(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id))
    await partition.apply(trigger(job_id, issued_at=PAST), trigger(job_id, issued_at=PAST))
    assert len(await partition.runs(job_id)) == 3


async def test_a_trigger_from_a_clock_that_is_ahead_is_due_at_once(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id))
    await partition.apply(trigger(job_id, issued_at=datetime.now(UTC) + timedelta(hours=5)))
    assert await fetch(partition.pool, "SELECT count(*) FROM runs WHERE due_at <= now()") == [1]


async def test_commands_of_one_job_in_one_batch_take_effect_in_order(partition: Partition, job_id: UUID) -> None:
    first, second = trigger(job_id), trigger(job_id)
    commands = [first, create(job_id), pause(job_id), resume(job_id), second, pause(job_id), pause(job_id)]
    effects = await partition.apply(*commands)
    assert effects.rejected.keys() == {first.command_id}  # there was no job yet
    assert await partition.states(job_id) == ["held", "held"]
    assert (await partition.job(job_id)).version == 4
    outcomes = [await partition.outcome(command) for command in commands]
    assert outcomes == ["job_unknown", *["applied"] * 5, "unchanged"]


async def test_a_batch_and_a_failing_attempt_do_not_wait_for_each_other(partition: Partition, job_id: UUID) -> None:
    """The batch cancels the run and then pauses its job: the attempt's end takes both locks, too."""
    await partition.apply(create(job_id, {"runAt": "2026-01-01T00:00:00Z"}))
    [run_id] = await fetch(partition.pool, "SELECT run_id FROM runs")
    async with api_transaction(partition.pool, [run_id]) as conn:
        [lease] = await lease_runs(conn, [LeaseAsk(run_id, partition.fence.epoch, "worker", 30)])
    async with session(partition.pool) as witness, api_transaction(partition.pool, [run_id]) as conn:
        await hold_job_states(conn, [run_id])
        batch = asyncio.create_task(partition.apply(cancel(job_id, run_id), pause(job_id)))
        await until_someone_waits_for_a_lock(witness)
        failure = Failure(run_id, lease.lease_token, "broken", permanent=True)
        [ended] = await fail_runs(conn, [failure])
    assert ended.outcome == "dead"
    assert [error.code for error in (await batch).rejected.values()] == ["run_unknown"]
    assert (await partition.job(job_id)).state == "paused"


async def test_commands_for_what_is_not_there_are_rejected(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id))
    commands = [pause(job_on(PARTITION)), delete(job_id, tenant="rival"), resume(job_id, tenant="rival")]
    effects = await partition.apply(*commands)
    assert {error.code for error in effects.rejected.values()} == {"job_unknown"}
    assert len(effects.rejected) == 3
    assert (await partition.job(job_id)).state == "active"


async def test_commands_after_a_deletion_are_rejected_but_another_deletion(partition: Partition, job_id: UUID) -> None:
    await partition.apply(create(job_id), delete(job_id))
    again, late = delete(job_id), pause(job_id)
    effects = await partition.apply(again, late)
    assert effects.rejected.keys() == {late.command_id}
    assert await partition.outcome(again) == "unchanged"


def test_every_command_is_carried_out() -> None:
    assert set(APPLIERS) == set(COMMANDS.values())


async def test_a_run_that_nobody_knows_cannot_be_cancelled(partition: Partition, job_id: UUID) -> None:
    command = CancelRun(command_id=new_id(), tenant="acme", job_id=job_id, issued_at=datetime.now(UTC), run_id=new_id())
    effects = await partition.apply(command)
    assert effects.rejected[command.command_id].code == "run_unknown"


def test_the_jobs_of_these_tests_are_on_the_partition(job_id: UUID) -> None:
    assert partition_of_job(job_id, PARTITIONS) == PARTITION
