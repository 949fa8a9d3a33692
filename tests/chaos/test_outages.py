"""Whole services that are away for a while: what goes on without them, and what catches up."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from fencepost import every
from tests.chaos.cluster import Cluster
from tests.chaos.trial import Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(reason="a broker that is killed keeps its topics only there"),
]

ONE_OFFS = 600
SPREAD_S = 10.0
LATE_S_MAX = 15.0

NewTrial = Callable[[str], Trial]


def create_by_http(cluster: Cluster) -> httpx.Response:
    local = cluster.local
    return httpx.post(
        f"{local.url}/v1/jobs",
        json={"queue": "outage", "schedule": {"delaySeconds": 86_400}},
        headers={"Authorization": f"Bearer {local.token}"},
        timeout=20,
        trust_env=False,
    )


def test_runs_start_while_kafka_is_down_and_creates_say_when_to_come_back(
    cluster: Cluster, new_trial: NewTrial
) -> None:
    with new_trial("Kafka down") as trial:
        trial.add_worker()
        trial.create_in_every_partition(every(1))
        trial.create(ONE_OFFS, first_due_s=3, spread_s=SPREAD_S)
        trial.wait_for_progress(50)
        cluster.kill("kafka")
        trial.wait_for_progress(ONE_OFFS // 3)
        refused = create_by_http(cluster)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        trial.wait_for_progress(50)
        cluster.start_part("kafka")

        report = trial.converge()
        assert report.violations == []
        assert report.lateness_s_max <= LATE_S_MAX
        assert trial.explained(report).wrong == []
        assert create_by_http(cluster).status_code in (201, 202)


def test_runs_do_not_wait_for_relay_or_history_which_catch_up(cluster: Cluster, new_trial: NewTrial) -> None:
    with new_trial("relay and history down") as trial:
        trial.add_worker()
        trial.create(ONE_OFFS, first_due_s=1, spread_s=SPREAD_S)
        trial.wait_for_progress(50)
        cluster.kill("relay", "history")
        trial.wait_for_progress(ONE_OFFS // 2)
        assert trial.completed_in_history() == -1
        assert trial.waiting()["events"] > 0
        cluster.start_part("relay")
        cluster.start_part("history")

        report = trial.converge()
        assert report.violations == []
        assert report.completed == ONE_OFFS
        assert trial.explained(report).wrong == []
