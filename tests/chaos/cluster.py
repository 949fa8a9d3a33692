"""A whole installation as processes that can be hurt: the local stack, and the workers beside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bench.balancer import Balancer
from bench.rolling_restart import in_order, restart
from connectors.stack.part import Part
from fencepostd.local import Local, names_of
from streams.topics import Topics
from tests.chaos.history import EntryKind, WorkerEntry, read_worker_log
from tests.chaos.observations import EpochWatch, consumed_offsets, topic_ends
from tests.chaos.ownerless import Stop
from tests.chaos.timeline import Timeline

OWNERS = ("streams-0", "streams-1")
ROLES = (*OWNERS, "api", "relay", "history")
SERVERS = ("postgres", "kafka")
PARTITIONS = 16
RECOVERY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
POLL_S = 0.05
ROOT = Path(__file__).parents[2]


def wait_for(condition: Callable[[], bool], deadline_s: float, what: str) -> float:
    """Look until the condition holds; returns how long that took. Raises AssertionError naming what did not come."""
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        assert waited_s < deadline_s, f"not within {deadline_s:g} s: {what}"
        time.sleep(POLL_S)
    return time.monotonic() - began


class WorkerProcess:
    """A worker in a process and its log."""

    def __init__(
        self,
        folder: Path,
        url: str,
        token: str,
        queue: str,
        name: str,
        terms: list[str],
        module: str = "tests.chaos.worker_process",
    ) -> None:
        self.name = name
        self._log, self._read, self._entries = folder / f"{name}.jsonl", 0, list[WorkerEntry]()
        argv = [sys.executable, "-m", module, str(self._log), queue, name, *terms]
        with (folder / f"{name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env={**os.environ, "FENCEPOST_URL": url, "FENCEPOST_TOKEN": token},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def entries(self) -> list[WorkerEntry]:
        """All it has noted until now; each call reads only what is new."""
        news, self._read = read_worker_log(self._log, self._read)
        self._entries += news
        return self._entries

    def entries_of(self, kind: EntryKind) -> list[WorkerEntry]:
        return [entry for entry in self.entries() if entry.kind == kind]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def send(self, number: int) -> None:
        """A signal; nothing where it has ended."""
        self._process.send_signal(number)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """SIGTERM; SIGKILL if it does not drain."""
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


class Cluster:
    """The stack of one state folder. It outlives trials, and is made whole again between them.

    options: those of Local, for instance standby or relays. Before several APIs there is a balancer.
    """

    def __init__(self, state: Path, *, apis: int = 1, **options: Any) -> None:
        self.state = state
        self.timeline = Timeline("cluster")
        self.local = Local(state, self._say, apis=apis, **options)
        self.stack = self.local.stack
        self._balancer = Balancer([self.port(name) for name in names_of("api", apis)]) if apis > 1 else None
        self.stops: list[Stop] = []  # of processes that were killed or frozen, in order
        self._epochs: EpochWatch | None = None

    def stop(self) -> None:
        """Nothing is left running."""
        if self._epochs is not None:
            self._epochs.close()
        if self._balancer is not None:
            self._balancer.close()
        self.stack.down()

    @property
    def url(self) -> str:
        """Where workers find the API."""
        return self.local.url if self._balancer is None else self._balancer.url

    @property
    def epochs(self) -> EpochWatch:
        assert self._epochs is not None, "the cluster was not started"
        return self._epochs

    def kill(self, *parts: str) -> None:
        """SIGKILL each with everything it started."""
        for part in parts:
            self.timeline.fault(f"kill -9 {part}")
            self.stack.kill_part(part)
            self.stops.append(Stop(part, datetime.now(UTC)))

    def stop_part(self, part: str) -> None:
        """SIGTERM, and wait until it has ended, as before an upgrade."""
        self.timeline.note(f"SIGTERM {part}")
        Part(part, self.state).end(STOP_DEADLINE_S)

    def deploy(self) -> None:
        """Restart every role, process after process."""
        for part in in_order(status.name for status in self.stack.status()):
            told = restart(self.local, part, self._balancer)
            self.timeline.note(f"restarted {part}: gone in {told.ended_s:.1f} s, ready {told.began_s:.1f} s later")

    def start_part(self, part: str) -> None:
        """Start again what was killed or stopped; returns once it says that it is ready."""
        self.stack.start_part(part)

    def freeze(self, part: str) -> None:
        self.timeline.fault(f"SIGSTOP {part}")
        self.stack.signal_part(part, signal.SIGSTOP)
        wait_for(lambda: part in self._frozen(), 10, f"{part} stands still")
        self.stops.append(Stop(part, datetime.now(UTC)))

    def fail_over(self) -> None:
        """The primary is lost, and its standby promoted; returns once it is the primary."""
        self.kill("postgres")
        self.stack.promote()

    def thaw(self, part: str) -> None:
        self.timeline.note(f"SIGCONT {part}")
        self.stack.signal_part(part, signal.SIGCONT)

    def make_whole(self) -> None:
        """Start or thaw what does not run; until everything answers, and both owners have a share of the partitions."""
        for part in self._frozen():
            self.thaw(part)
        self.local.up()
        if self._epochs is None:
            self._epochs = EpochWatch(self.stack.dsn)
        wait_for(self.is_shared, RECOVERY_DEADLINE_S, "both owners have partitions, and together all")

    def is_shared(self) -> bool:
        """Each owner says that it holds partitions, and together they hold all, each once."""
        held = [self.held_by(owner) for owner in OWNERS]
        return all(held) and sorted(chain.from_iterable(held)) == list(range(PARTITIONS))

    def held_by(self, owner: str) -> list[int]:
        """The partitions that a streams process says it owns; none while it does not answer."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port(owner)}/healthz", timeout=2, trust_env=False)
        except httpx.HTTPError:
            return []
        partitions: list[int] = answer.json().get("partitions", [])
        return partitions

    def holders(self) -> dict[int, str]:
        """Who owns each partition by the ledger: the name of the process, without its nonce."""
        with psycopg.connect(self.stack.dsn, autocommit=True) as conn:
            rows = conn.execute("SELECT partition, coalesce(split_part(owner, '/', 1), '') FROM partitions").fetchall()
        return dict(rows)

    def all_is_consumed(self) -> bool:
        """Every partition's commands are applied to the end of the topic."""
        return consumed_offsets(self.stack.dsn) == topic_ends(self.stack.bootstrap, Topics().commands)

    def metric(self, part: str, name: str) -> float:
        """The sum of a metric's samples in a role's /metrics; 0 while it does not answer."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port(part)}/metrics", timeout=2, trust_env=False)
        except httpx.HTTPError:
            return 0.0
        lines = [line for line in answer.text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def timing_state(self, owner: str, partition: int) -> str | None:
        """The identity of the database in which an owner keeps a partition's time; None when there is none."""
        identity = self.state / owner / f"p-{partition:04d}" / "IDENTITY"
        return identity.read_text() if identity.exists() else None

    def drop_timing_state(self, owner: str) -> None:
        """Delete all that an owner, which does not run, has on disk."""
        self.timeline.fault(f"rm -r {owner}'s state")
        shutil.rmtree(self.state / owner)

    def port(self, part: str) -> int:
        return self.stack.port_for(part)

    def _frozen(self) -> list[str]:
        return [part.name for part in self.stack.status() if part.health == "frozen"]

    def _say(self, text: str) -> None:
        self.timeline.note(text)


@contextmanager
def whole_cluster(state: Path, **options: Any) -> Iterator[Cluster]:
    """One of a test's own, whole; its data may be lost. options: those of Cluster."""
    cluster = Cluster(state, **options)
    try:
        cluster.make_whole()
        yield cluster
    finally:
        cluster.stop()
