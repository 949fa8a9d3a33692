"""kill -9 of any role, of the servers and of everything, while runs are due. Source: ARCHITECTURE, Failure table."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.chaos.cluster import OWNERS, RECOVERY_DEADLINE_S, ROLES, SERVERS, wait_for
from tests.chaos.trial import Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(reason="a broker that is killed keeps its topics only there"),
]

ONE_OFFS = 3_000
SPREAD_S = 12.0
DEAD_S_MAX = 2.0
EVERYTHING = (*SERVERS, *ROLES)

NewTrial = Callable[[str], Trial]

# Each of these dies alone, in this order, in one load.
VICTIMS = ("worker", "relay", "history", "api", *OWNERS, *SERVERS)


def under_load(trial: Trial) -> None:
    """Two workers, and 3,000 one-offs: half of them created before and half meanwhile, and more until `end_load`."""
    trial.add_worker()
    trial.add_worker()
    trial.create(ONE_OFFS // 2, first_due_s=2, spread_s=SPREAD_S)
    trial.create_meanwhile(ONE_OFFS // 2, lead_s=1.5, per_s=ONE_OFFS / 2 / SPREAD_S)


def wait_for_work(trial: Trial) -> None:
    """Some of the load is executed between one fault and the next."""
    trial.wait_for_progress(trial.timeline.random.randint(20, 80))


def stay_dead(trial: Trial) -> None:
    """A kill is an outage of some length: up to 2 s until somebody starts the process again."""
    time.sleep(trial.timeline.random.uniform(0, DEAD_S_MAX))


def kill_and_restart(trial: Trial, victim: str) -> None:
    if victim == "worker":
        trial.kill_worker(trial.workers[0])
        trial.add_worker()
        return
    trial.cluster.kill(victim)
    stay_dead(trial)
    trial.cluster.start_part(victim)


def assert_all_is_well(trial: Trial) -> None:
    """Everything that was accepted is completed, once, and why each run was late is known."""
    report = trial.converge()
    assert report.violations == []
    assert report.completed == len(trial.one_offs) >= ONE_OFFS
    explained = trial.explained(report)
    assert explained.wrong == []
    assert explained.runs == report.completed


def test_every_run_is_completed_once_though_one_process_after_the_other_is_killed(new_trial: NewTrial) -> None:
    with new_trial("one after the other") as trial:
        under_load(trial)
        for victim in VICTIMS:
            wait_for_work(trial)
            kill_and_restart(trial, victim)
            wait_for(trial.cluster.is_shared, RECOVERY_DEADLINE_S, "every partition has an owner")
        assert_all_is_well(trial)


def test_every_run_is_completed_once_though_everything_is_killed_at_once(new_trial: NewTrial) -> None:
    with new_trial("everything at once") as trial:
        under_load(trial)
        wait_for_work(trial)
        for worker in trial.workers[:]:
            trial.kill_worker(worker)
        trial.cluster.kill(*EVERYTHING)
        stay_dead(trial)
        trial.cluster.local.up()
        trial.add_worker()
        trial.add_worker()
        assert_all_is_well(trial)
