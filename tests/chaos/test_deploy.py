"""Every role is restarted, process after process, while runs are due. Source: ARCHITECTURE, Failure table."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.balancer import NOTICE_S
from bench.deploy import PAIRS
from fencepost import every
from tests.chaos.checker import lateness_s
from tests.chaos.cluster import Cluster, WorkerProcess, wait_for, whole_cluster
from tests.chaos.trial import VISIBILITY_S, Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(
        reason="what a trial added is read between two ends of a topic, which only it tells right"
    ),
]

DEPLOY_LATE_S_P99 = 1.0
ONE_OFFS_PER_S = 20
LOAD_S = 45.0
LASTING = 5


@pytest.fixture
def pairs_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that has two of every role of which there may be two, whole."""
    with whole_cluster(tmp_path / "cluster", **PAIRS, notice_s=NOTICE_S) as cluster:
        yield cluster


def test_a_deploy_fails_no_call_keeps_every_lease_and_makes_no_run_late(pairs_cluster: Cluster, tmp_path: Path) -> None:
    with Trial(pairs_cluster, tmp_path, "every role restarted") as trial:
        lasting = trial.add_lasting_worker()
        trial.create_lasting(LASTING)
        under_load(trial)
        wait_for(lambda: len(lasting.entries_of("started")) == LASTING, 60, "the long runs have begun")
        trial.wait_for_progress(10 * ONE_OFFS_PER_S)

        began = datetime.now(UTC)
        pairs_cluster.deploy()
        ended = datetime.now(UTC)
        lasting.send(signal.SIGUSR1)

        report = trial.converge()
        assert failed_calls(trial) == []
        assert report.violations == []
        assert report.duplicates == 0
        assert_leases_lasted(lasting, began, ended)
        late_s_p99 = p99(lateness_s(trial.history(), since=began, until=ended))
        trial.timeline.note(f"99 in 100 runs of the deploy were at most {late_s_p99:.3f} s late")
        assert late_s_p99 <= DEPLOY_LATE_S_P99
        assert trial.explained(report).wrong == []


def under_load(trial: Trial) -> None:
    """Two workers; one-offs that come all the time, and recurring jobs of every partition."""
    trial.add_worker()
    trial.add_worker()
    trial.create_in_every_partition(every(2))
    trial.create_meanwhile(round(LOAD_S * ONE_OFFS_PER_S), lead_s=1.5, per_s=ONE_OFFS_PER_S)


def failed_calls(trial: Trial) -> list[str]:
    """Of the workers: without a success for an answer, whatever the SDK made of it."""
    return [f"{entry.at}: {entry.detail}" for entry in trial.entries() if entry.kind == "failed"]


def assert_leases_lasted(worker: WorkerProcess, began: datetime, ended: datetime) -> None:
    """Each run's only lease is from before the deploy, much shorter than it by itself, and was good for an outcome."""
    assert (ended - began).total_seconds() > 3 * VISIBILITY_S
    leased = {entry.run_id: entry for entry in worker.entries_of("leased")}
    assert len(leased) == len(worker.entries_of("leased")) == LASTING
    assert [entry for entry in leased.values() if entry.attempt != 1 or entry.at > began] == []
    for kind in ("finished", "answered"):
        entries = worker.entries_of(kind)
        assert {entry.run_id: entry.token for entry in entries} == {run: each.token for run, each in leased.items()}
        assert min(entry.at for entry in entries) > ended
    assert {entry.status for entry in worker.entries_of("answered")} == {200}


def p99(values: Sequence[float]) -> float:
    """Of ascending values."""
    return values[int(0.99 * (len(values) - 1))]
