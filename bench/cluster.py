"""A Fencepost of its own for a benchmark: real Kafka, Postgres and every role as processes, gone afterwards."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.cpu import with_children_s
from fencepostd.local import Local

RESULTS = Path(__file__).parent / "results"


@contextmanager
def cluster(**options: Any) -> Iterator[Local]:
    """A running local stack in a temporary folder. options: those of Local, for instance owners or partitions."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        local = Local(Path(folder), say, **options)
        local.up()
        try:
            yield local
        finally:
            local.stack.down()


def say(line: str) -> None:
    """Progress goes to standard error: standard output is the result."""
    print(line, file=sys.stderr, flush=True)


def wait_until(dsn: str | Sequence[str], query: str, wanted: Any, deadline_s: float = 120) -> None:
    """Wait until a query of one value answers `wanted`, of several shards in sum. Raises TimeoutError with the last
    answer."""
    until = time.monotonic() + deadline_s
    with ExitStack() as stack:
        dsns = [dsn] if isinstance(dsn, str) else dsn
        conns = [stack.enter_context(psycopg.connect(each, autocommit=True)) for each in dsns]
        while (found := sum(scalar(conn, query) for conn in conns)) != wanted:
            if time.monotonic() > until:
                raise TimeoutError(f"{query} is {found!r}, not {wanted!r}, after {deadline_s} s")
            time.sleep(0.05)


def scalar(conn: psycopg.Connection[Any], query: str) -> Any:
    """The one value that a query answers."""
    row = conn.execute(query.encode()).fetchone()
    return row[0] if row else None


def wal_bytes(dsn: str) -> int:
    """How much WAL the server has written so far."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return int(scalar(conn, "SELECT pg_current_wal_insert_lsn() - '0/0'"))


def cpu_seconds(local: Local) -> dict[str, float]:
    """The CPU time that each part has used so far, with its children: Postgres has a process a session."""
    used = {}
    for part in local.stack.status():
        if part.pid is not None:
            used[part.name] = with_children_s(part.pid)
    return used


def report(name: str, figures: dict[str, Any], *, quiet: bool = False) -> None:
    """Print figures as a table, unless quiet, and keep them as JSON under bench/results/."""
    for key, value in () if quiet else figures.items():
        print(f"  {key:<44} {value:>14,.3f}" if isinstance(value, float) else f"  {key:<44} {value:>14}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
