"""A whole installation that can be hurt everywhere: servers, roles, workers, and the links between them.

Every role reaches Kafka and Postgres through links of its own, workers reach the API through some, and a supervisor
starts again what ends by itself, as an operating system's would.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from connectors.stack import LocalStack, PostgresServer, StackError, default_cache_dir
from connectors.stack.part import Part, Say
from connectors.stack.postgres import local_dsn
from connectors.stack.register import Register
from tests.chaos.clock_skew import ClockSkew
from tests.chaos.cluster import WorkerProcess, wait_for
from tests.chaos.fault_plan import Targets
from tests.chaos.history import WorkerEntry
from tests.chaos.installation import Addresses, Installation
from tests.chaos.links import Link, Links
from tests.chaos.proxied_kafka import Listener, ProxiedKafka

ROLES = ("history", "relay", "relay-1", "streams-0", "streams-1", "api", "api-1")
EXTRAS = ("streams-2", "streams-3")
WORKERS = ("worker-0", "worker-1", "worker-2")
SERVERS = ("postgres", "kafka")
PRODUCER = "producer"
VISIBILITY_S = 5.0
SUPERVISED_S = 1.0
WORKER_STARTS_WITHIN_S = 90.0


class Stage:
    """Begins with up, ends with down. `away`: what is not to run just now, and so is not started by the supervisor.

    say: gets the parts' own words about their starts. note: what happens beside what was planned.
    """

    def __init__(self, state: Path, queue: str, *, note: Say, say: Say) -> None:
        self.state, self.queue, self._note, self._say = state, queue, note, say
        self.clocks = ClockSkew(state / "clocks")
        self._links = Links()
        self._register = Register(state.resolve())
        self._listeners = {
            client: Listener(self._port(f"kafka for {client}"), self._port(f"{client} to kafka"))
            for client in (*ROLES, *EXTRAS, PRODUCER)
        }
        self._kafka = ProxiedKafka(state, self._listeners, say=say)
        self._postgres = PostgresServer(state, default_cache_dir(), say=say)
        self.links: dict[str, Link] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self._lives: list[WorkerProcess] = []
        self.away = set(EXTRAS)
        self._starts = {part: threading.Lock() for part in (*ROLES, *EXTRAS, *SERVERS, *WORKERS)}
        self._done = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def up(self) -> None:
        self._kafka.start()
        self._postgres.start()
        for client, listener in self._listeners.items():
            self._add_link(f"{client} to kafka", listener.told_port, listener.port)
            if client != PRODUCER:
                name = f"{client} to postgres"
                self._add_link(name, self._port(name), self._postgres.port)
        self.installation = Installation(
            self.state, Addresses(self._kafka.bootstrap, self._postgres.dsn), ROLES,
            say=self._say, told=self.told, env=self.clocks.env,
        )  # fmt: skip
        self.installation.up()
        for extra in EXTRAS:
            self.installation.add(extra)
        for api in ("api", "api-1"):
            name = f"workers to {api}"
            self._add_link(name, self._port(name), self.installation.stack.port_for(api))
        for worker in WORKERS:
            self.start(worker)
        self._supervisor.start()

    def down(self) -> None:
        """Nothing is left running, whatever state it is in."""
        self._done.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for worker in self.workers.values():
            worker.end()
        for server in SERVERS:
            if (process := Part(server, self.state).process) is not None:
                for member in process.tree():
                    member.send(signal.SIGCONT)
        LocalStack(self.state, say=self._say).down()  # whatever is registered, roles first
        self._kafka.stop()
        self._postgres.stop()
        self._links.close()

    @property
    def targets(self) -> Targets:
        return Targets(
            roles=ROLES,
            servers=SERVERS,
            workers=WORKERS,
            links=tuple(link for link in self.links if not link.startswith(EXTRAS)),
            state_keepers=("streams-0", "streams-1", "history"),
            extras=EXTRAS,
            can_skew=not self.clocks.missing,
        )

    def told(self, role: str) -> Addresses:
        """Where a role is told that the servers are."""
        return Addresses(self.told_kafka(role), local_dsn(self.links[f"{role} to postgres"].port))

    def told_kafka(self, client: str = PRODUCER) -> str:
        """Where a role, or the producer, is told that Kafka is."""
        return f"127.0.0.1:{self.links[f'{client} to kafka'].port}"

    # --- what can be done to a part, by name ---

    def start(self, part: str) -> None:
        """Start it unless it runs; returns once it is ready. Raises StackError."""
        self.away.discard(part)
        with self._starts[part]:  # its supervisor may be at it, too
            if part == "kafka":
                self._kafka.start()
            elif part == "postgres":
                self._postgres.start()
            elif part not in WORKERS:
                self.installation.start(part)
            elif part not in self.workers or not self.workers[part].is_alive():
                self._start_worker(part)

    def start_all(self, parts: Sequence[str]) -> None:
        """Servers before who needs them; the others side by side, as a machine that boots does."""
        servers = [part for part in parts if part in SERVERS]
        for group in (servers, [part for part in parts if part not in SERVERS]):
            with ThreadPoolExecutor(len(group) or 1) as pool:
                list(pool.map(self._try_to_start, group))

    def _try_to_start(self, part: str) -> None:
        try:
            self.start(part)
        except StackError as error:  # the supervisor goes on trying
            self._note(f"{part} does not start: {str(error).splitlines()[0]}")

    def kill(self, part: str) -> None:
        self.away.add(part)
        if part in WORKERS:
            self.workers[part].kill()
        else:
            self.installation.kill(part)

    def stop(self, part: str) -> None:
        """SIGTERM, and wait until it has ended."""
        self.away.add(part)
        if part in WORKERS:
            self.workers[part].end()
        else:
            self.installation.stop(part)

    def freeze(self, part: str) -> None:
        self.send(part, signal.SIGSTOP)

    def thaw(self, part: str) -> None:
        self.send(part, signal.SIGCONT)

    def send(self, part: str, number: int) -> None:
        """A signal; nothing where it has ended."""
        if part in WORKERS:
            self.workers[part].send(number)
        else:
            with suppress(StackError):
                self.installation.stack.signal_part(part, number)

    def limit_files(self, part: str, size_bytes: int) -> None:
        """The largest file that the process may write from now on, as by a quota; -1 for any size."""
        pid = self.installation.pid(part)
        with suppress(psutil.NoSuchProcess):
            if pid is not None:
                process = psutil.Process(pid)
                _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
                process.rlimit(psutil.RLIMIT_FSIZE, (hard if size_bytes < 0 else size_bytes, hard))

    def make_whole(self, deadline_s: float) -> float:
        """Undo whatever is done, and wait until every partition has an owner; returns how long that took."""
        for link in self.links.values():
            link.open()
        for part in (*SERVERS, *ROLES, *EXTRAS, *WORKERS):
            self.thaw(part)
        for role in (*ROLES, *EXTRAS):
            self.clocks.set(role, 0)
            self.limit_files(role, -1)
        for extra in EXTRAS:
            self.stop(extra)
        self.start_all((*SERVERS, *ROLES, *WORKERS))
        return wait_for(self.installation.is_owned, deadline_s, "every partition has an owner")

    def entries(self) -> list[WorkerEntry]:
        """What all workers have noted until now, those that were killed among them."""
        return [entry for worker in self._lives for entry in worker.entries()]

    # --- within ---

    def _port(self, name: str) -> int:
        """One that no part of the stack takes meanwhile."""
        return self._register.claim_port(name)

    def _add_link(self, name: str, port: int, target_port: int) -> None:
        self.links[name] = self._links.add(name, port, target_port)

    def _start_worker(self, name: str) -> None:
        api = "api-1" if name == WORKERS[-1] else "api"
        url, token = f"http://127.0.0.1:{self.links[f'workers to {api}'].port}", self.installation.token
        life = f"{name}-life-{len(self._lives) + 1}"
        module = "tests.chaos.load_worker"
        self.workers[name] = WorkerProcess(self.state, url, token, self.queue, life, [str(VISIBILITY_S)], module)
        self._lives.append(self.workers[name])
        wait_for((self.state / f"{life}.jsonl").exists, WORKER_STARTS_WITHIN_S, f"{life} has begun its log")

    def _supervise(self) -> None:
        """Start again, a moment later, what has ended by itself."""
        while not self._done.wait(SUPERVISED_S):
            for part in (*SERVERS, *ROLES, *WORKERS):
                if part not in self.away and not self._runs(part):
                    self._note(f"{part} has ended by itself and is started again")
                    self._try_to_start(part)

    def _runs(self, part: str) -> bool:
        return self.workers[part].is_alive() if part in WORKERS else self.installation.pid(part) is not None
