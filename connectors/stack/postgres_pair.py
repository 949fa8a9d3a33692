"""A Postgres with a synchronous standby: what one has committed, both have."""

from __future__ import annotations

from pathlib import Path

from connectors.stack.errors import StackError
from connectors.stack.part import Say, silent
from connectors.stack.postgres import DATABASE, STANDBY, PostgresServer, standby_name
from connectors.stack.processes import wait_until

FOLLOWS_DEADLINE_S = 60.0
PROMOTED_DEADLINE_S = 60


class PostgresPair:
    """Two servers, either of which may be the primary by now: the one whose data are no standby's.

    Once the standby is promoted it commits alone, until the next `start` makes the old primary its standby.
    """

    def __init__(self, state_dir: Path, cache_dir: Path, *, name: str = "postgres", say: Say = silent) -> None:
        self.servers = [PostgresServer(state_dir, cache_dir, name=each, say=say) for each in (name, standby_name(name))]

    @property
    def primary(self) -> PostgresServer:
        """The one that is no standby; of two that are none, the one that was promoted last."""
        return max(self.servers, key=lambda server: server.timeline)

    @property
    def standby(self) -> PostgresServer:
        return min(reversed(self.servers), key=lambda server: server.timeline)

    @property
    def dsn(self) -> str:
        """Of both: who connects gets the primary. Raises StackError before the first start."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"postgresql://postgres@{hosts}/{DATABASE}?target_session_attrs=read-write"

    def start(self) -> None:
        """Start what does not run, and wait until the standby has all there is. Raises PartFailed, StackError.

        From then on the primary commits nothing that the standby does not have on its disk.
        """
        primary, standby = self.primary, self.standby
        primary.start()
        if not standby.is_standby:
            standby.forget_data()
        standby.follow(primary)
        if not wait_until(lambda: _is_followed(primary), FOLLOWS_DEADLINE_S):
            raise StackError(f"{standby.part.name} does not follow {primary.part.name}; see its log")
        primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
        primary.execute("SELECT pg_reload_conf()")
        if not wait_until(lambda: _is_followed(primary, "sync"), FOLLOWS_DEADLINE_S):
            raise StackError(f"{primary.part.name} does not wait for {standby.part.name}; see its log")

    def promote(self) -> None:
        """Make the standby the primary, whatever has become of the old one, which may run on. Raises StackError."""
        standby = self.standby
        if not standby.is_standby:
            raise StackError(f"{standby.part.name} is no standby: nothing was started as one yet")
        if standby.execute(f"SELECT pg_promote(true, {PROMOTED_DEADLINE_S})") != [(True,)]:
            raise StackError(f"{standby.part.name} was not promoted within {PROMOTED_DEADLINE_S} s; see its log")
        standby.part.say("promoted")


def _is_followed(primary: PostgresServer, *states: str) -> bool:
    """Whether a standby has all there is, and is in one of these states of synchrony, if any are told."""
    found = primary.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
    return any(not states or state in states for (state,) in found)
