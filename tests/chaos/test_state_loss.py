"""Owners keep a cache on disk and commands count once: losing the one or repeating the other changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from fencepost import at, every
from streams.topics import Topics
from tests.chaos.cluster import OWNERS, Cluster, wait_for
from tests.chaos.observations import (
    forget_offsets,
    produce_again,
    read_rows,
    topic_ends,
)
from tests.chaos.trial import Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(
        reason="what a trial added is read between two ends of a topic, which only it tells right"
    ),
]

TOPICS = Topics()
SETTLED_DEADLINE_S = 60.0

NewTrial = Callable[[str], Trial]


def far_away() -> datetime:
    """No run of a job due then begins while we look."""
    return datetime.now(UTC) + timedelta(hours=2)


def with_jobs_in_every_state(trial: Trial) -> None:
    """Completed one-offs; waiting, triggered, paused, resumed and deleted jobs; settled when this returns."""
    trial.add_worker()
    trial.create(200, first_due_s=0.5, spread_s=2)
    waiting, recurring = trial.create_open_ended(50, at(far_away())), trial.create_open_ended(50, every(7_200))
    producer = trial.producer
    for one_off, job in zip(waiting[:10], recurring[:10], strict=True):
        producer.pause(one_off)
        producer.pause(job)
    for one_off, job in zip(waiting[:5], recurring[:5], strict=True):
        producer.resume(one_off)
        producer.resume(job)
    for one_off, job in zip(waiting[10:20], recurring[10:20], strict=True):
        producer.delete(one_off)
        producer.delete(job)
    for job in recurring[20:30]:
        producer.trigger(job)
    producer.flush()
    wait_for(trial.cluster.all_is_consumed, SETTLED_DEADLINE_S, "all commands are consumed")
    wait_for(lambda: trial.finished() == 210, SETTLED_DEADLINE_S, "one-offs and triggered runs are executed")
    wait_for(lambda: trial.waiting() == {"runs": 80, "events": 0}, SETTLED_DEADLINE_S, "all events are published")


def test_owners_that_lose_their_disk_lose_no_run(cluster: Cluster, new_trial: NewTrial) -> None:
    with new_trial("all timing state deleted") as trial:
        with_jobs_in_every_state(trial)
        jobs = {str(job_id) for job_id in trial.open_ended}
        before = read_rows(cluster.stack.dsn, jobs)
        trial.create(500, first_due_s=2, spread_s=12)
        trial.wait_for_progress(20)
        cluster.kill(*OWNERS)
        for owner in OWNERS:
            cluster.drop_timing_state(owner)
        cluster.local.up()
        wait_for(cluster.is_shared, SETTLED_DEADLINE_S, "both owners have partitions")
        after = read_rows(cluster.stack.dsn, jobs)
        assert [after[table] for table in ("jobs", "runs", "dead")] == [
            before[table] for table in ("jobs", "runs", "dead")
        ]
        report = trial.converge()
        assert report.violations == []
        assert report.completed == 200 + 10 + 500


def test_commands_that_are_produced_again_or_read_from_the_first_record_on_change_nothing(
    cluster: Cluster, new_trial: NewTrial
) -> None:
    with new_trial("every command once more") as trial:
        with_jobs_in_every_state(trial)
        before = everything(trial)
        count = produce_again(cluster.stack.bootstrap, TOPICS.commands)
        trial.timeline.fault(f"{count} records produced again")
        wait_for(cluster.all_is_consumed, SETTLED_DEADLINE_S, "all commands are consumed again")
        assert everything(trial) == before

        cluster.kill(*OWNERS)
        forget_offsets(cluster.stack.dsn)
        trial.timeline.fault("offsets forgotten")
        cluster.local.up()
        wait_for(cluster.all_is_consumed, SETTLED_DEADLINE_S, "all commands are read from the first one on")
        assert everything(trial) == before

        trial.create(100, first_due_s=0.5, spread_s=1)
        report = trial.converge()
        assert report.violations == []
        assert report.completed == 200 + 10 + 100


def everything(trial: Trial) -> tuple[object, object, object]:
    """The ledger's rows of the trial, what waits, and the ends of what was told to the world."""
    stack = trial.cluster.stack
    events, rejected = (topic_ends(stack.bootstrap, topic) for topic in (TOPICS.run_events, TOPICS.rejected))
    return read_rows(stack.dsn, trial.job_ids()), trial.waiting(), (events, rejected)
