"""A primary is lost for good while runs are due, and its standby promoted. Source: ARCHITECTURE, Failure table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Cluster, whole_cluster
from tests.chaos.trial import Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(
        reason="what a trial added is read between two ends of a topic, which only it tells right"
    ),
]

ONE_OFFS = 1_500
SPREAD_S = 20.0
LATE_S_MAX = 15.0


@pytest.fixture
def pair_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose Postgres has a standby, whole."""
    with whole_cluster(tmp_path / "cluster", standby=True) as cluster:
        yield cluster


def test_runs_go_on_with_the_standby_when_the_primary_is_lost(pair_cluster: Cluster, tmp_path: Path) -> None:
    with Trial(pair_cluster, tmp_path, "the primary lost") as trial:
        trial.add_worker()
        trial.add_worker()
        trial.create(ONE_OFFS, first_due_s=2, spread_s=SPREAD_S)
        trial.wait_for_progress(ONE_OFFS // 10)
        pair_cluster.fail_over()

        report = trial.converge()
        assert report.violations == []
        assert report.completed == ONE_OFFS
        assert report.lateness_s_max <= LATE_S_MAX
        assert trial.explained(report).wrong == []
