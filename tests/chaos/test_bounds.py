"""How late the loss of one process may make runs, and its orderly end. Source: ARCHITECTURE, Failure table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.chaos.cluster import Cluster, WorkerProcess, wait_for
from tests.chaos.trial import VISIBILITY_S, Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(
        reason="what a trial added is read between two ends of a topic, which only it tells right"
    ),
]

ONE_OFFS = 800
SPREAD_S = 20.0
OWNER_LOST_S_MAX = 15.0
HANDED_OVER_S_MAX = 1.0
RECONNECTED_S_MAX = 2.0
RETRIED_S_MAX = 4.0  # after a lease's end: half a second until it is seen, up to 2 s of jitter

NewTrial = Callable[[str], Trial]


def under_load(trial: Trial) -> None:
    """One-offs of every partition, 40 a second, of which some are done."""
    trial.add_worker()
    trial.create(ONE_OFFS, first_due_s=1, spread_s=SPREAD_S)
    trial.wait_for_progress(100)


def wait_until_moved(cluster: Cluster) -> None:
    wait_for(lambda: set(cluster.holders().values()) == {"streams-1"}, 60, "the other owner has everything")


def test_an_owner_that_is_killed_makes_no_run_more_than_15_s_late(cluster: Cluster, new_trial: NewTrial) -> None:
    with new_trial("an owner killed") as trial:
        under_load(trial)
        cluster.kill("streams-0")
        wait_until_moved(cluster)
        cluster.start_part("streams-0")

        report = trial.converge()
        assert report.violations == []
        assert report.lateness_s_max <= OWNER_LOST_S_MAX
        assert trial.explained(report).wrong == []


def test_an_owner_that_ends_in_order_makes_no_run_more_than_a_second_late(
    cluster: Cluster, new_trial: NewTrial
) -> None:
    with new_trial("an owner restarted") as trial:
        under_load(trial)
        cluster.stop_part("streams-0")
        wait_until_moved(cluster)
        cluster.start_part("streams-0")
        wait_for(cluster.is_shared, 60, "both own partitions again")

        report = trial.converge()
        assert report.violations == []
        assert report.lateness_s_max <= HANDED_OVER_S_MAX
        assert report.duplicates == 0


def test_a_worker_works_again_within_2_s_of_the_api_s_return(cluster: Cluster, new_trial: NewTrial) -> None:
    with new_trial("the API killed") as trial:
        under_load(trial)
        cluster.kill("api")
        cluster.start_part("api")
        leased = sum(entry.kind == "leased" for entry in trial.entries())
        took_s = wait_for(
            lambda: sum(entry.kind == "leased" for entry in trial.entries()) > leased,
            RECONNECTED_S_MAX,
            "a worker has leased again",
        )
        trial.timeline.note(f"a worker leased again after {took_s:.2f} s")

        report = trial.converge()
        assert report.violations == []
        assert trial.explained(report).wrong == []


def test_runs_of_a_killed_worker_start_again_once_their_leases_are_over(new_trial: NewTrial) -> None:
    with new_trial("a worker killed") as trial:
        lost = trial.add_worker(work_s=60)
        trial.create(20, first_due_s=1, spread_s=0)
        wait_for(lambda: len(started_by(lost)) == 20, 30, "the worker has runs in hand")
        rescuer = trial.add_worker()
        trial.kill_worker(lost)
        killed = datetime.now(UTC)

        report = trial.converge()
        assert report.violations == []
        assert started_by(rescuer).keys() == started_by(lost).keys()
        again_s = (max(started_by(rescuer).values()) - killed).total_seconds()
        assert again_s <= VISIBILITY_S + RETRIED_S_MAX


def started_by(worker: WorkerProcess) -> dict[str, datetime]:
    """The runs that its handler has begun, and when."""
    return {entry.run_id: entry.at for entry in worker.entries() if entry.kind == "started"}
