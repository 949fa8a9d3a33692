"""The way from any older ledger to ledger/schema.sql: files in number order, each applied once.

`NNNN_pre_*.sql` runs before the new code and leaves old code working; `NNNN_post_*.sql` after the last old process
has stopped. Both are applied by `migrate` unless it is told to stop before the post ones.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

MIGRATIONS_FOLDER = Path(__file__).parent

# Any number: it only keeps two migrating processes apart.
_MIGRATION_LOCK = 4_017_001

CREATE_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS schema_migrations (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())
"""


def migrate(dsn: str, *, post: bool = True) -> list[str]:
    """Apply what is missing, each file in a transaction of its own. Returns the names that were applied.

    post: also those that old code would not survive. Raises psycopg.Error, with the ledger at the last good step.
    """
    applied = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        conn.execute(CREATE_MIGRATIONS)
        done = {row[0] for row in conn.execute("SELECT name FROM schema_migrations")}
        for file in migration_files():
            if file.stem in done or ("_post_" in file.stem and not post):
                continue
            with conn.transaction():
                conn.execute(file.read_bytes())
                conn.execute("INSERT INTO schema_migrations (name) VALUES (%s)", (file.stem,))
            applied.append(file.stem)
    return applied


def migration_files() -> list[Path]:
    """All migrations, oldest first."""
    return sorted(MIGRATIONS_FOLDER.glob("[0-9]*.sql"))
