"""The load of the scale benchmark, and the benchmark itself, tiny."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import chain

import msgspec

from bench.scale import beside
from bench.schedule_load import QUIET_FOR, Load, jobs
from fencepostd.local import Local
from schemas.commands import CreateJob, JobSpec
from schemas.ids import new_id, partition_of_job
from streams.job_commands import new_job

WANTED = Load("", "acme", 16, schedules=400, lively=20, created_at=datetime(2026, 3, 1, 10, 30, tzinfo=UTC))


def test_every_loaded_job_is_what_its_command_would_have_made() -> None:
    for partition, job in chain(jobs(WANTED, 0), jobs(WANTED, 1)):
        assert job.next_fire_at is not None
        command = CreateJob(
            command_id=new_id(),
            tenant=job.tenant,
            job_id=job.job_id,
            issued_at=job.created_at,
            spec=msgspec.json.decode(job.definition, type=JobSpec),
        )
        assert job == new_job(command, partition, WANTED.created_at)
        assert partition == partition_of_job(job.job_id, 16)


def test_the_loaders_shares_make_up_the_whole_and_only_the_lively_fire_soon() -> None:
    loaded = [job for share in range(2) for _, job in jobs(WANTED, share)]
    assert len({job.job_id for job in loaded}) == 400
    soon = [job for job in loaded if job.next_fire_at and job.next_fire_at <= WANTED.created_at + QUIET_FOR]
    assert len(soon) == 20
    most = Counter(job.definition for job in loaded).most_common(1)
    assert most[0][1] < 40


def test_owners_find_what_was_loaded_and_again_after_a_restart(local: Local) -> None:
    figures = beside(local, 2_000, 40, 2.0, 16)
    assert figures["next fires wrong after that, jobs"] == figures["next fires wrong at the end, jobs"] == 0
    assert figures["runs, runs/s"] > 0
    assert figures["CPU, µs/run"] > 0
