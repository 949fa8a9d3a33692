"""Processes that stand still longer than they are waited for, then go on. Source: ARCHITECTURE, Failure table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import chain

import pytest

from fencepost import every
from tests.chaos.cluster import Cluster, WorkerProcess, wait_for
from tests.chaos.history import EntryKind
from tests.chaos.trial import Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(
        reason="what a trial added is read between two ends of a topic, which only it tells right"
    ),
]

OWNER_FREEZE_S = 25.0
LATE_S_MAX = 15.0
API_FREEZE_S = 6.0

NewTrial = Callable[[str], Trial]


def test_an_owner_that_wakes_after_25_s_changes_nothing(cluster: Cluster, new_trial: NewTrial) -> None:
    with new_trial("an owner frozen") as trial:
        trial.add_worker()
        trial.add_worker()
        # Every partition has something to write at any moment: else one may be let go before its owner finds out.
        trial.create_in_every_partition(every(1))
        trial.create(1_000, first_due_s=1, spread_s=32)
        trial.wait_for_progress(100)
        lost = cluster.held_by("streams-0")
        memory = {partition: cluster.timing_state("streams-0", partition) for partition in lost}
        assert None not in memory.values()

        began = time.monotonic()
        cluster.freeze("streams-0")
        moved_s = wait_for(
            lambda: set(cluster.holders().values()) == {"streams-1"}, LATE_S_MAX, "the other owner has everything"
        )
        trial.timeline.note(f"partitions {lost} moved after {moved_s:.1f} s")
        # Not a wait for anything: the freeze is a duration.
        time.sleep(max(0.0, began + OWNER_FREEZE_S - time.monotonic()))
        cluster.thaw("streams-0")

        wait_for(lambda: cluster.metric("streams-0", "fencepost_epochs_lost_total") > 0, 10, "a write was refused")
        wait_for(
            lambda: all(cluster.timing_state("streams-0", partition) != memory[partition] for partition in lost),
            10,
            "the memory of the lost partitions is gone",
        )
        shared_s = wait_for(cluster.is_shared, 30, "both own partitions again, and together all")
        trial.timeline.note(f"shared again after {shared_s:.1f} s")

        report = trial.converge()
        assert report.violations == []
        assert report.duplicates == 0
        assert report.lateness_s_max <= LATE_S_MAX
        assert trial.explained(report).wrong == []


def runs_of(workers: Iterable[WorkerProcess], kind: EntryKind, status: int = 0) -> set[str]:
    """The runs of which some of the workers have noted this."""
    entries = chain.from_iterable(worker.entries() for worker in workers)
    return {entry.run_id for entry in entries if entry.kind == kind and entry.status == status}


def in_hand(*workers: WorkerProcess) -> set[str]:
    """The runs whose handler has started and not ended."""
    return runs_of(workers, "started") - runs_of(workers, "finished") - runs_of(workers, "stopped")


def test_a_worker_frozen_past_its_lease_reports_nothing_and_would_be_refused(new_trial: NewTrial) -> None:
    with new_trial("workers frozen") as trial:
        ours, blind = trial.add_worker(work_s=2), trial.add_worker(work_s=2, blind=True)
        trial.create(100, first_due_s=2, spread_s=0)
        wait_for(lambda: len(in_hand(ours)) >= 10 and bool(in_hand(blind)), 30, "both workers have runs in hand")
        trial.freeze_worker(ours)
        trial.freeze_worker(blind)
        of_ours, of_blind = in_hand(ours), in_hand(blind)
        trial.timeline.note(f"frozen with {len(of_ours)} and {len(of_blind)} runs in hand")

        # They wake while others are at work on their runs: what they say now must not count for the others' leases.
        rescuers = [trial.add_worker(work_s=8), trial.add_worker(work_s=8)]
        wait_for(lambda: of_ours | of_blind <= runs_of(rescuers, "started"), 30, "other workers have their runs")
        assert of_blind & in_hand(*rescuers)
        ours.thaw()
        blind.thaw()
        trial.timeline.note(f"SIGCONT both, {len(of_blind & in_hand(*rescuers))} runs in other hands")

        wait_for(lambda: of_blind <= runs_of([blind], "answered", 409), 10, "the late completions were refused")
        wait_for(lambda: of_ours | of_blind <= runs_of(rescuers, "answered", 200), 30, "the others completed them")
        for rescuer in rescuers:
            rescuer.end()
        done_before = runs_of([ours], "answered", 200)
        trial.create(100, first_due_s=0, spread_s=1)
        wait_for(lambda: runs_of([ours], "answered", 200) > done_before, 20, "the worker that woke works again")

        report = trial.converge()
        assert report.violations == []
        assert not of_ours & {entry.run_id for entry in ours.entries() if entry.kind == "answered"}
        assert of_blind <= runs_of([blind], "finished"), "it did run to its end, and counts as a duplicate"
        assert report.duplicates <= len(of_ours | of_blind)


def test_runs_are_completed_once_though_the_api_stands_still(cluster: Cluster, new_trial: NewTrial) -> None:
    with new_trial("the API frozen") as trial:
        trial.add_worker()
        trial.add_worker()
        trial.create(600, first_due_s=1, spread_s=8)
        trial.wait_for_progress(100)
        cluster.freeze("api")
        # Not a wait for anything: the freeze is a duration, longer than the leases.
        time.sleep(API_FREEZE_S)
        cluster.thaw("api")
        report = trial.converge()
        assert report.violations == []
        assert report.completed == 600
        assert trial.explained(report).wrong == []
