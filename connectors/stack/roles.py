"""What a role of the server is to the stack: a command to run, given the addresses of Kafka and Postgres."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Argv = Sequence[str] | Callable[[str, str], Sequence[str]]
Env = Mapping[str, str] | Callable[[str, str], Mapping[str, str]]


@dataclass(frozen=True)
class RoleSpec:
    """One role process. argv and env may be functions of (bootstrap, dsn).

    health_url: answers 2xx once the role is ready; a role without one counts as started when it still runs after
    `settle_s`. env is added to this process's own environment.
    """

    name: str
    argv: Argv
    env: Env = field(default_factory=dict)
    health_url: str | None = None
    port: int | None = None
    settle_s: float = 1.5
    ready_deadline_s: float = 60.0

    def command(self, bootstrap: str, dsn: str) -> tuple[Sequence[str], Mapping[str, str]]:
        argv = self.argv(bootstrap, dsn) if callable(self.argv) else self.argv
        env = self.env(bootstrap, dsn) if callable(self.env) else self.env
        return argv, env
