"""An upgrade without a stop: the schema goes forward under writers of the last releases, who go on upon it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors

import ledger.migrations
from ledger.migrations import migrate, migration_files
from schemas.errors import LedgerUnavailable
from tests.migrations.conftest import NewDatabase
from tests.migrations.old_worker import OldWorker, completed_in_outbox, init_partitions
from tests.migrations.released_statements import numbered, recorded, releases

PARTITIONS = 2
GIVES_WAY_S = 0.05

MigrateTo = Callable[[str, int], None]


@pytest.fixture
def migrate_to(monkeypatch: pytest.MonkeyPatch) -> MigrateTo:
    """Makes a ledger of a release, given by its last migration."""

    def go(dsn: str, last: int) -> None:
        with monkeypatch.context() as patch:
            then = [file for file in migration_files() if int(file.stem[:4]) <= last]
            patch.setattr(ledger.migrations, "migration_files", lambda: then)
            migrate(dsn)

    return go


@contextmanager
def working(dsn: str, release: int) -> Iterator[list[OldWorker]]:
    """One worker a partition, each in a thread, until the block ends. Raises what one of them could not do."""
    workers = [OldWorker(dsn, partition, recorded(release)) for partition in range(PARTITIONS)]
    stop = threading.Event()

    def work(worker: OldWorker) -> None:
        while not stop.is_set():
            worker.work()

    with ThreadPoolExecutor(PARTITIONS) as threads:
        futures = [threads.submit(work, worker) for worker in workers]
        try:
            yield workers
        finally:
            stop.set()
            for worker, future in zip(workers, futures, strict=True):
                future.result()
                worker.close()


def await_more(workers: list[OldWorker], count: int) -> None:
    """Return once each has completed so many more runs. Raises AssertionError after a minute."""
    before = [len(worker.completed) for worker in workers]
    clock = threading.Event()
    for _ in range(6_000):
        if all(len(worker.completed) >= was + count for worker, was in zip(workers, before, strict=True)):
            return
        clock.wait(0.01)  # the workers tell nobody; one that has failed does not go on
    raise AssertionError(f"they stand still: {[len(worker.completed) for worker in workers]} after {before}")


@pytest.mark.parametrize("release", releases())
def test_every_statement_of_a_release_is_understood_by_the_schema_that_its_processes_find_after_pre_only(
    new_database: NewDatabase, migrate_to: MigrateTo, release: int
) -> None:
    dsn = new_database()
    migrate_to(dsn, release)
    migrate(dsn, post=False)
    with psycopg.connect(dsn, autocommit=True) as conn:
        refused = {}
        for name, statement in recorded(release).items():
            prepared = conn.pgconn.prepare(b"", numbered(statement))
            if prepared.status != psycopg.pq.ExecStatus.COMMAND_OK:
                refused[name] = prepared.error_message.decode()
    assert refused == {}


@pytest.mark.parametrize("release", releases())
def test_migrations_go_forward_under_the_load_of_a_release_which_notices_nothing(
    new_database: NewDatabase, migrate_to: MigrateTo, release: int
) -> None:
    dsn = new_database()
    migrate_to(dsn, release)
    init_partitions(dsn, PARTITIONS)
    with working(dsn, release) as workers:
        await_more(workers, 10)
        migrate(dsn, post=False)
        await_more(workers, 10)
    done = [run_id for worker in workers for run_id in worker.completed]
    with psycopg.connect(dsn) as conn:
        assert sorted(completed_in_outbox(conn)) == sorted(done)
        assert conn.execute("SELECT count(*) FROM runs").fetchone() == (0,)
        assert conn.execute("SELECT count(*) FROM schema_migrations").fetchone() == (len(applicable(release)),)


def applicable(release: int) -> list[str]:
    """What is applied with --pre-only on top of a release."""
    names = [file.stem for file in migration_files()]
    return [name for name in names if int(name[:4]) <= release or "_post_" not in name]


def migrating(threads: ThreadPoolExecutor, dsn: str) -> Future[list[str]]:
    return threads.submit(migrate, dsn, lock_timeout_s=GIVES_WAY_S)


def test_a_migration_that_waits_for_a_long_reader_lets_writers_through_and_is_applied_once_that_ends(
    new_database: NewDatabase, migrate_to: MigrateTo
) -> None:
    dsn, release = new_database(), releases()[0]
    migrate_to(dsn, release)
    init_partitions(dsn, PARTITIONS)
    with psycopg.connect(dsn) as reader, ThreadPoolExecutor(1) as threads:
        reader.execute("LOCK TABLE jobs, partitions, outbox IN ROW EXCLUSIVE MODE")  # as a writer who is not done yet
        with working(dsn, release) as workers:
            upgrade = migrating(threads, dsn)
            await_more(workers, 50)  # behind a lock that is waited for nobody would get on
            assert not upgrade.done()
            reader.rollback()
            assert upgrade.result(60)[-1] == migration_files()[-1].stem
            await_more(workers, 5)


def test_a_migration_that_never_gets_its_lock_is_given_up_and_says_why(
    new_database: NewDatabase, migrate_to: MigrateTo
) -> None:
    dsn = new_database()
    migrate_to(dsn, 8)
    with psycopg.connect(dsn) as reader:
        reader.execute("LOCK TABLE partitions IN ACCESS SHARE MODE")
        with pytest.raises(LedgerUnavailable, match="0009_pre_token_floor got no lock") as refused:
            migrate(dsn, lock_timeout_s=GIVES_WAY_S, patience_s=0.1)
        assert isinstance(refused.value.__cause__, errors.LockNotAvailable)
    assert migrate(dsn)[0] == "0009_pre_token_floor"
