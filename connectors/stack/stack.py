"""The local stack: Kafka, Postgres and the server's roles as plain processes under one state folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from connectors.stack.errors import StackBusy, StackError
from connectors.stack.health import http_health, kafka_health, postgres_health
from connectors.stack.kafka import KafkaBroker
from connectors.stack.logs import log_path, read_lines
from connectors.stack.part import Part, Say
from connectors.stack.postgres import PostgresServer
from connectors.stack.postgres_pair import PostgresPair
from connectors.stack.processes import end
from connectors.stack.register import Register, locked
from connectors.stack.roles import RoleSpec
from connectors.stack.status import PartStatus, external_status, part_status

ROLES_STOP_DEADLINE_S = 20.0
# A freeze is only one when every process of the part stands still.
WHOLE_TREE_SIGNALS = {signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL}

Init = Callable[[str, str], None]


def default_cache_dir() -> Path:
    """$FENCEPOST_CACHE, else ~/.cache/fencepost."""
    return Path(os.environ.get("FENCEPOST_CACHE") or Path.home() / ".cache" / "fencepost")


class LocalStack:
    """Brings the parts of one state folder up and down; any process may do either.

    kafka, postgres: addresses of running servers to use instead of starting own ones. shards: how many Postgres servers
    to start, by default as many as last time; a state folder keeps their number. standby: give each of them a
    synchronous standby; by default as last time, and for good. roles: in start order.
    say: gets one progress line at a time, from several threads. init: called with (bootstrap, dsn) once both servers
    answer and before any role starts; what it raises ends the start.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        kafka: str | None = None,
        postgres: str | None = None,
        shards: int | None = None,
        standby: bool = False,
        roles: Sequence[RoleSpec] = (),
        say: Say = print,
        init: Init | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        state_dir = state_dir.resolve()
        cache_dir = cache_dir or default_cache_dir()
        self.state_dir = state_dir
        self.register = Register(state_dir)
        self._given = {"kafka": kafka, "postgres": postgres}
        self._roles = {role.name: role for role in roles}
        self._say = say
        self._init = init
        self._shards = shards
        self._kafka = KafkaBroker(state_dir, cache_dir, say=say)
        self._standby = standby or self.register.read().standby
        names = ["postgres", *(f"postgres-{shard}" for shard in range(1, shards or self._shards_before() or 1))]
        make = PostgresPair if self._standby else PostgresServer
        self._postgres = {name: make(state_dir, cache_dir, name=name, say=say) for name in names}
        # Every part that is a server. Those of a pair are started together.
        self._servers: dict[str, KafkaBroker | PostgresServer] = {
            server.part.name: server for postgres in self._postgres.values() for server in postgres.servers
        }
        self._servers["kafka"] = self._kafka

    def add_role(self, role: RoleSpec) -> None:
        """One more role, started after those before it."""
        self._roles[role.name] = role

    @property
    def bootstrap(self) -> str:
        """Kafka's address. Raises StackError before the first `up`."""
        return self._external("kafka") or self._kafka.bootstrap

    @property
    def dsn(self) -> str:
        """Postgres's address: home's, where there are several. Raises StackError before the first `up`."""
        return self._external("postgres") or self._postgres["postgres"].dsn

    @property
    def dsns(self) -> list[str]:
        """Those of all shards, home's first."""
        return [self.dsn, *self.shard_dsns]

    @property
    def shard_dsns(self) -> list[str]:
        """Those of the others, of shards 1, 2, …"""
        return [server.dsn for name, server in self._postgres.items() if name != "postgres"]

    def up(self) -> None:
        """Start what does not run yet and wait until all of it is ready.

        Raises PartFailed with the tail of the log of the part that failed; whatever this call started is stopped
        again. Raises StackBusy while another `up` or `down` works on the state folder.
        """
        began = time.monotonic()
        with self._alone():
            running = self._running()
            try:
                self._start_everything()
            except BaseException:  # a Ctrl-C too must not leave half a stack behind
                self._stop([name for name in self._running() if name not in running])
                raise
        self._say(f"up in {time.monotonic() - began:.1f} s")

    def down(self) -> None:
        """Stop the roles, then Kafka and Postgres; SIGKILL past the deadlines. Nothing is left running."""
        began = time.monotonic()
        with self._alone():
            self._stop(list(self.register.read().parts))
        self._say(f"down in {time.monotonic() - began:.1f} s")

    def status(self) -> list[PartStatus]:
        """Every part, servers first, each asked for its health now, all at the same time."""
        names = [*self._servers, *dict.fromkeys([*self._roles, *self._recorded_roles()])]
        with ThreadPoolExecutor(len(names)) as pool:
            return list(pool.map(self._status_of, names))

    def logs(self, name: str, follow: bool = False) -> Generator[str, None, None]:
        """The lines of a part's log. With follow, go on with new ones until the iterator is closed."""
        path = log_path(self.state_dir, name)
        if not path.exists():
            raise StackError(f"{name} has no log in {self.state_dir}; parts: {', '.join(self._known())}")
        return read_lines(path, follow)

    def start_part(self, name: str) -> None:
        """Start one part and wait until it is ready. Raises PartFailed; nothing to do if it runs."""
        self._check_known(name)
        if name in self._servers:
            self._start_server(name)
        else:
            self._start_roles([self._roles[name]])

    def kill_part(self, name: str) -> None:
        """SIGKILL a part with everything it started, as a crash, and wait until it is gone."""
        self._part(name).kill()

    def signal_part(self, name: str, sig: int) -> None:
        """Signal a part's first process; SIGSTOP, SIGCONT and SIGKILL go to all it started.

        Raises StackError if it is not running.
        """
        process = self._part(name).process
        if process is None:
            raise StackError(f"{name} is not running")
        for member in process.tree() if sig in WHOLE_TREE_SIGNALS else [process]:
            member.send(sig)

    def promote(self, name: str = "postgres") -> None:
        """Make the standby of that Postgres its primary. Raises StackError when it has none."""
        pair = self._postgres.get(name)
        if not isinstance(pair, PostgresPair):
            raise StackError(f"{name} has no standby")
        pair.promote()

    def port_for(self, name: str) -> int:
        """A free loopback port for a role: the one it runs on or had last time, while that is free."""
        if self.register.running(name) is not None and (port := self.register.port(name)) is not None:
            return port
        return self.register.claim_port(name)

    # --- starting ---

    def _start_everything(self) -> None:
        self._check_shards()
        with self.register.change() as contents:
            contents.kafka, contents.postgres = self._given["kafka"], self._given["postgres"]
            contents.shards, contents.standby = len(self._postgres), self._standby
        with ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(self._start_server, [*self._postgres, "kafka"]))
        if self._init is not None:
            self._init(self.bootstrap, self.dsn)
        self._start_roles(list(self._roles.values()))

    def _shards_before(self) -> int | None:
        """How many servers were started last time; None before the first."""
        contents = self.register.read()
        return contents.shards or (1 if contents.ports.get("postgres") else None)

    def _check_shards(self) -> None:
        before = self._shards_before()
        if before is not None and before != len(self._postgres):
            raise StackError(f"{self.state_dir} has {before} shards, not {len(self._postgres)}: take another folder")
        if self._given["postgres"] is not None and len(self._postgres) > 1:
            raise StackError("with a Postgres of yours, name its shards by `fencepostd init`: none is started here")
        if self._given["postgres"] is not None and self._standby:
            raise StackError("with a Postgres of yours, name all its hosts in the DSN: no standby is started here")

    def _start_server(self, name: str) -> None:
        external = self._external(name)
        if external is None:
            (self._kafka if name == "kafka" else self._postgres_of(name)).start()
            return
        health = kafka_health(external) if name == "kafka" else postgres_health(external)
        if not health.ok:
            raise StackError(f"the {name} given does not answer: {health.detail}")
        self._say(f"{name}: using {external}")

    def _postgres_of(self, name: str) -> PostgresServer | PostgresPair:
        """What is started when that part is to run: with a standby, both of the pair."""
        return next(each for each in self._postgres.values() if self._servers[name] in each.servers)

    def _start_roles(self, roles: Sequence[RoleSpec]) -> None:
        """All at once: they wait for each other less than for their own start."""
        absent = [role for role in roles if self.register.running(role.name) is None]
        for role in absent:
            argv, env = role.command(self.bootstrap, self.dsn)
            self._part(role.name).launch(argv, env, role.port, role.health_url)
            self._say(f"{role.name}: started")
        with ThreadPoolExecutor(max(1, len(absent))) as pool:
            list(pool.map(self._await_role, absent))

    def _await_role(self, role: RoleSpec) -> None:
        part = self._part(role.name)
        if role.health_url is not None:
            part.await_ready(partial(http_health, role.health_url), role.ready_deadline_s)
        else:
            part.await_settled(role.settle_s)

    # --- stopping ---

    def _stop(self, names: Sequence[str]) -> None:
        self._stop_roles([name for name in names if name not in self._servers])
        with ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(self._stop_server, [name for name in self._servers if name in names]))

    def _stop_roles(self, names: Sequence[str]) -> None:
        if names:
            self._say(f"stopping {', '.join(names)}")
        records = [record for name in names if (record := self.register.part(name)) is not None]
        end([record.process for record in records], ROLES_STOP_DEADLINE_S)
        with self.register.change() as contents:
            for name in names:
                contents.parts.pop(name, None)

    def _stop_server(self, name: str) -> None:
        self._say(f"stopping {name}")
        self._servers[name].stop()

    # --- looking ---

    def _status_of(self, name: str) -> PartStatus:
        external = self._external(name)
        if external is not None:
            return external_status(name, external)
        return part_status(name, self.register.part(name))

    def _external(self, name: str) -> str | None:
        """The address of a server of somebody else: the one given now, else the one the last `up` was given."""
        if name not in self._given:
            return None
        contents = self.register.read()
        return self._given[name] or (contents.kafka if name == "kafka" else contents.postgres)

    def _running(self) -> list[str]:
        return [name for name in self.register.read().parts if self.register.running(name) is not None]

    def _recorded_roles(self) -> list[str]:
        return [name for name in self.register.read().parts if name not in self._servers]

    def _known(self) -> list[str]:
        return list(dict.fromkeys([*self._servers, *self._roles, *self._recorded_roles()]))

    def _check_known(self, name: str) -> None:
        if name not in self._servers and name not in self._roles:
            raise StackError(f"there is no part {name!r}; parts: {', '.join([*self._servers, *self._roles])}")

    def _part(self, name: str) -> Part:
        if name not in self._known():
            raise StackError(f"there is no part {name!r}; parts: {', '.join(self._known())}")
        return Part(name, self.state_dir, self._say)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.state_dir / "stack.lock", wait=False))
            except BlockingIOError:
                raise StackBusy(f"another command is bringing {self.state_dir} up or down") from None
            yield
