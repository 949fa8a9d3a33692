"""What a state folder remembers between commands: which processes run, and which ports the parts use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from connectors.stack.ports import free_port, is_free
from connectors.stack.processes import Process


class PartRecord(msgspec.Struct, frozen=True):
    """One started part. `log_offset`: where in its log this start begins, in bytes. `flavour`: which broker."""

    pid: int
    started_at: float
    port: int | None = None
    health_url: str | None = None
    log_offset: int = 0
    flavour: str | None = None

    @property
    def process(self) -> Process:
        return Process(self.pid, self.started_at)


class Contents(msgspec.Struct):
    """The file. `kafka` and `postgres` are addresses of servers that belong to somebody else.

    `shards`: how many Postgres servers of its own the stack has; None before the first start. `standby`: whether each
    of them has one.
    """

    parts: dict[str, PartRecord] = {}
    ports: dict[str, int] = {}
    kafka: str | None = None
    postgres: str | None = None
    shards: int | None = None
    standby: bool = False


class Register:
    """`register.json` of one state folder. Every change is made under a file lock and replaces the file whole."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._path = state_dir / "register.json"

    def read(self) -> Contents:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Contents)
        except FileNotFoundError:
            return Contents()

    @contextmanager
    def change(self) -> Iterator[Contents]:
        with locked(self.state_dir / "register.lock"):
            contents = self.read()
            yield contents
            fresh = self._path.with_suffix(".new")
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(contents)))
            fresh.replace(self._path)

    def part(self, name: str) -> PartRecord | None:
        return self.read().parts.get(name)

    def running(self, name: str) -> Process | None:
        record = self.part(name)
        return record.process if record is not None and record.process.alive() else None

    def put(self, name: str, record: PartRecord) -> None:
        with self.change() as contents:
            contents.parts[name] = record

    def forget(self, name: str) -> None:
        with self.change() as contents:
            contents.parts.pop(name, None)

    def port(self, name: str) -> int | None:
        return self.read().ports.get(name)

    def claim_port(self, name: str, wanted: int | None = None) -> int:
        """The port wanted, else the one used last time while it is free, else a new one; remembered."""
        with self.change() as contents:
            last = contents.ports.get(name)
            if wanted is None and last is not None and is_free(last):
                wanted = last
            contents.ports[name] = wanted or free_port(frozenset(contents.ports.values()))
            return contents.ports[name]


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, across processes and threads. Raises BlockingIOError if it is held and wait is False."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
