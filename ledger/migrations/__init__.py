"""The way from any older ledger to ledger/schema.sql: files in number order, each applied once.

`NNNN_pre_*.sql` runs before the new code and leaves old code working; `NNNN_post_*.sql` after the last old process
has stopped. Both are applied by `migrate` unless it is told to stop before the post ones.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import psycopg
from psycopg import errors

from ledger.confirmed_connection import Standby, Unconfirmed
from ledger.servers import complete_dsn
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

MIGRATIONS_FOLDER = Path(__file__).parent

# A lock on a table that somebody reads for long is waited for by the migration, and whoever comes then waits behind it.
# So it gives way soon, lets the others through and tries again.
LOCK_TIMEOUT_S = 1.0
PATIENCE_S = 300.0

# Any number: it only keeps two migrating processes apart.
_MIGRATION_LOCK = 4_017_001

CREATE_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS schema_migrations (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())
"""


SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, false)"
NOTE_MIGRATION = "INSERT INTO schema_migrations (name) VALUES (%s)"


def migrate(
    dsn: str, *, post: bool = True, lock_timeout_s: float = LOCK_TIMEOUT_S, patience_s: float = PATIENCE_S
) -> list[str]:
    """Apply what is missing, each file in a transaction of its own. Returns the names that were applied.

    post: also those that old code would not survive. lock_timeout_s: how long a file waits for a lock, and so others
    behind it, before it gives way. Raises LedgerUnavailable when a file got its locks at no try within patience_s, or
    psycopg.Error; either way with the ledger at the last good step.
    """
    applied = []
    with psycopg.connect(complete_dsn(dsn), autocommit=True) as conn:
        standby = Standby()
        conn.add_notice_handler(standby.hear)
        conn.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        conn.execute(CREATE_MIGRATIONS)
        # Only from here on: another process that migrates is waited for.
        conn.execute(SET_LOCK_TIMEOUT, (f"{round(lock_timeout_s * 1000)}ms",))
        done = {row[0] for row in conn.execute("SELECT name FROM schema_migrations")}
        for file in migration_files():
            if file.stem in done or ("_post_" in file.stem and not post):
                continue
            _apply(conn, file, lock_timeout_s, patience_s)
            if standby.is_missing:
                raise Unconfirmed(f"the wait for the synchronous standby was cancelled; is {file.stem} on it?")
            applied.append(file.stem)
    return applied


def _apply(conn: psycopg.Connection, file: Path, lock_timeout_s: float, patience_s: float) -> None:
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            with conn.transaction():
                conn.execute(file.read_bytes())
                conn.execute(NOTE_MIGRATION, (file.stem,))
            return
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            if time.monotonic() >= give_up_at:
                said = f"{file.stem} got no lock within {patience_s:g} s: end the sessions with long transactions"
                raise LedgerUnavailable(said) from error
            log.warning("%s gave way, and tries again: %s", file.stem, error)
        time.sleep(lock_timeout_s)  # for as long as others may have waited


def migration_files() -> list[Path]:
    """All migrations, oldest first."""
    return sorted(MIGRATIONS_FOLDER.glob("[0-9]*.sql"))
