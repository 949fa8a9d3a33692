"""CPU time, which other load changes little: of a piece of work in a process of its own, and of Postgres."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
import psycopg


def cpu_s() -> float:
    """The CPU time of this process, of all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def measured(work: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """`work(pipe, *args)` in a process of its own, so that nobody else's CPU time is counted with it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs, *args))
    process.start()
    try:
        yield ours
    finally:
        process.join(10)
        process.kill()


def with_children_s(pid: int) -> float:
    """The CPU time of a process and of those that it has started, ended ones included."""
    process = psutil.Process(pid)
    ended = process.cpu_times()
    living = sum(map(_cpu_s, [process, *process.children(recursive=True)]))
    return living + ended.children_user + ended.children_system


def postgres_pid(dsn: str) -> int:
    """The server's process, of which every session is a child."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        parent = psutil.Process(row[0]).parent()
    assert parent is not None
    return parent.pid


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0
