"""The core of a release's code by its recorded statements: jobs are created, and their runs leased and completed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import Connection

from ledger.connection import SESSION_OPTIONS
from ledger.jobs import Policies
from schemas.ids import new_id, run_id_for

INIT = """
INSERT INTO settings (key, value) SELECT 'partitions', '%(count)s' WHERE NOT EXISTS (SELECT FROM settings);
INSERT INTO partitions (partition) SELECT generate_series(0, %(count)s - 1) ON CONFLICT DO NOTHING;
"""


def init_partitions(dsn: str, count: int) -> None:
    """What every release's `init` has left."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(INIT % {"count": count})


class OldWorker:
    """Owner and API of one partition in one session, which stays open: its prepared statements saw the old schema."""

    def __init__(self, dsn: str, partition: int, statements: Mapping[str, str]) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True, options=SESSION_OPTIONS)
        self._partition, self._statements = partition, statements
        [(self._epoch, *_)] = self._send("fence.TAKE_OVER", (partition, "old-owner"))
        self.completed: list[UUID] = []

    def close(self) -> None:
        self._conn.close()

    def work(self) -> None:
        """A job's whole life: three transactions. Raises AssertionError for a run that is lost on the way."""
        now = datetime.now(UTC)
        job_id = new_id()
        run_id = run_id_for(job_id, now, self._partition)
        with self._conn.transaction():
            self._send("fence.FENCE_OWNER", (self._partition, self._epoch, "old-owner"))
            made = self._send("jobs.CREATE_JOBS", self._new_job(job_id, run_id, now))
        assert [row[0] for row in made] == [run_id]
        with self._conn.transaction():
            self._send("fence.FENCE_PARTITIONS", ([self._partition],))
            # Names that a release does not know are passed over.
            asked = {
                "run_ids": [run_id],
                "epochs": [self._epoch],
                "worker_ids": ["w"],
                "visibility_s": [30.0],
                "request_ids": [None],
            }
            [(leased, _, attempt, lease_token, *_)] = self._send("leases.LEASE_RUNS", {**asked, "now": None})
        assert (leased, attempt, lease_token) == (run_id, 1, 1)
        with self._conn.transaction():
            self._send("fence.FENCE_PARTITIONS", ([self._partition],))
            done = {"run_ids": [run_id], "lease_tokens": [1], "results": [None], "tenants": [None], "queues": [None]}
            assert self._send("completions.COMPLETE_RUNS", {**done, "now": None}) == [(run_id,)]
        self.completed.append(run_id)

    def _new_job(self, job_id: UUID, run_id: UUID, now: datetime) -> dict[str, Any]:
        """Column by column, as `ledger.jobs.NewJob` had them."""
        policies = {field: [value] for field, value in Policies()._asdict().items()}
        return policies | {
            "partition": self._partition, "tzdata": "2025b", "now": None, "job_id": [job_id], "tenant": ["acme"],
            "queue": ["mail"], "lane": [1], "definition": ['{"schedule":{"delaySeconds":0}}'], "payload": ["{}"],
            "max_attempts": [5], "next_fire_at": [now], "created_at": [now], "run_id": [run_id], "due_at": [now],
        }  # fmt: skip

    def _send(self, name: str, parameters: Any) -> list[tuple[Any, ...]]:
        return list(self._conn.execute(self._statements[name].encode(), parameters).fetchall())


def completed_in_outbox(conn: Connection) -> list[UUID]:
    """The runs whose completion is told, as often as it is told."""
    rows = conn.execute("SELECT unnest(run_ids) FROM outbox WHERE event = 'run_completed'").fetchall()
    return [row[0] for row in rows]
