"""A server is lost with its data, and the installation goes on from a backup. Source: docs/operating.md, Backups."""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from connectors.stack import PostgresServer, default_cache_dir
from fencepost import every
from fencepostd.cli import main
from tests.chaos.checker import Violation
from tests.chaos.cluster import PARTITIONS, ROLES, Cluster, wait_for, whole_cluster
from tests.chaos.history import EpochSample, History, WorkerEntry
from tests.chaos.lineage import Backup, executed, lineage, read_backup
from tests.chaos.trial import Trial

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.apache_kafka(reason="what was commanded since the backup is kept only there"),
]

SPREAD_S = 25.0  # of the one-offs: some before the loss, some after it


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose data may be lost, whole."""
    with whole_cluster(tmp_path / "cluster") as cluster:
        yield cluster


def test_from_a_backup_all_goes_on_and_only_what_ran_since_runs_again(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    with Trial(cluster, tmp_path, "the ledger restored") as trial:
        trial.add_worker()
        trial.add_worker(work_s=2)  # it has leases at any moment
        trial.create_in_every_partition(every(5), catch_up="all")
        trial.create(200, first_due_s=1, spread_s=SPREAD_S)
        trial.wait_for_progress(50)
        said = fencepostd("backup-check", "--kafka", cluster.stack.bootstrap, "--postgres", cluster.stack.dsn)
        assert "After a restore, before any role starts: `fencepostd restored`" in said
        server, files = PostgresServer(cluster.state, default_cache_dir()), tmp_path / "backup"
        began = datetime.now(UTC)
        server.back_up(files)
        ended = datetime.now(UTC)

        trial.create(200, first_due_s=1, spread_s=SPREAD_S)  # the backup knows nothing of them
        cluster.kill("streams-0")
        cluster.make_whole()
        trial.wait_for_progress(100)
        cluster.kill(*ROLES, "postgres")
        lost_at = datetime.now(UTC)
        server.restore(files)
        cluster.start_part("postgres")
        backup = read_backup(cluster.stack.dsn, began, ended)
        floor = declare_restored(cluster)
        back_at = datetime.now(UTC)
        cluster.make_whole()

        trial.settle()
        seen = trial.history()
        assert_no_epoch_comes_again(seen.epochs, lost_at, back_at)
        assert_no_token_comes_again(seen.entries, lost_at, floor)
        assert_only_what_ran_since_has_run_again(seen.entries, backup, lost_at, floor)
        lived = lineage(seen, backup, floor, lost_at, back_at)
        report = trial.judge(lived)
        assert [each for each in report.violations if not is_of_a_lease_of(backup, each)] == []
        wait_for(lambda: completed(lived) <= trial.runs_completed_in_history(), 60, "the history goes on")


def test_a_broker_that_has_lost_all_topics_is_gone_on_from_by_the_ledger(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    with Trial(cluster, tmp_path, "Kafka lost") as trial:
        trial.add_worker()
        trial.add_worker(work_s=2)
        trial.create_in_every_partition(every(5), catch_up="all")
        trial.create(200, first_due_s=1, spread_s=SPREAD_S)
        trial.wait_for_progress(50)
        wait_for(cluster.all_is_consumed, 60, "all commands are applied")

        cluster.kill(*ROLES)
        before = trial.history()
        cluster.kill("kafka")
        shutil.rmtree(cluster.state / "kafka")
        cluster.start_part("kafka")
        options = ["--kafka", cluster.stack.bootstrap, "--postgres", cluster.stack.dsn]
        said = fencepostd("init", *options, "--partitions", str(PARTITIONS))
        assert "had read a commands topic that is gone" in said
        cluster.make_whole()
        trial.begin_with_new_topics()

        trial.create(50, first_due_s=1, spread_s=10)
        trial.settle()
        after = trial.history()
        whole = replace(
            after,
            told=[*before.told, *after.told],
            events=[*before.events, *after.events],
            commands=[*before.commands, *after.commands],
        )
        assert trial.judge(whole).violations == []
        # Of what was told before it knows what it had read by then.
        wait_for(lambda: completed(after) <= trial.runs_completed_in_history(), 60, "the history goes on")


def completed(history: History) -> set[str]:
    """The runs that the topic tells to be."""
    return {event.run_id for event in history.events if event.type == "run_completed"}


def fencepostd(*command: str) -> str:
    """What it says; it must succeed."""
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return result.output


def is_of_a_lease_of(backup: Backup, violation: Violation) -> bool:
    """Whoever held one may have gone on under a token that is lost: so they are over at once, under another."""
    wanted = {"leases_end_no_sooner_than_promised", "ends_name_their_lease"}
    return violation.rule in wanted and violation.subject in backup.leased


def declare_restored(cluster: Cluster) -> int:
    """As an operator does; returns what tokens and ids are above since."""
    said = fencepostd("restored", "--postgres", cluster.stack.dsn)
    cluster.timeline.note(said.strip())
    found = re.search(r"go on above (\d+)", said)
    assert found is not None
    return int(found[1])


def epochs_of(samples: Iterable[EpochSample]) -> dict[int, list[int]]:
    """Those that each partition was seen under."""
    found: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        for partition, (epoch, _) in sample.partitions.items():
            found[partition].append(epoch)
    return found


def assert_no_epoch_comes_again(samples: Sequence[EpochSample], lost_at: datetime, back_at: datetime) -> None:
    before = epochs_of(sample for sample in samples if sample.at < lost_at)
    after = epochs_of(sample for sample in samples if sample.at > back_at)
    assert len(before) == len(after) == PARTITIONS
    for partition, epochs in after.items():
        assert min(epochs) > max(before[partition])


def assert_no_token_comes_again(entries: Sequence[WorkerEntry], lost_at: datetime, floor: int) -> None:
    """A worker that still has a lease of before is told that it has lost it."""
    before = {entry.token for entry in entries if entry.at < lost_at}
    given = {entry.token for entry in entries if entry.kind == "leased" and entry.at > lost_at}
    assert max(before) <= floor < min(given)
    late = [entry for entry in entries if entry.kind == "answered" and entry.at > lost_at and entry.token <= floor]
    assert {entry.status for entry in late} <= {409}


def assert_only_what_ran_since_has_run_again(
    entries: Sequence[WorkerEntry], backup: Backup, lost_at: datetime, floor: int
) -> None:
    """And some has: else the test has shown nothing."""
    of_the_backup = {entry.run_id for entry in entries if entry.status == 200 and entry.at < backup.began}
    since = {entry.run_id for entry in entries if entry.at < lost_at} - of_the_backup
    again = {entry.run_id for entry in entries if entry.kind == "started" and entry.token > floor}
    assert of_the_backup
    assert executed(entry for entry in entries if entry.at < lost_at) & again
    assert not of_the_backup & again
    times = Counter(entry.run_id for entry in entries if entry.kind == "finished")
    assert {run_id for run_id, count in times.items() if count > 1} <= since
