"""What `status` tells about a part: whether it runs, since when, and what it answers when asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from connectors.stack.health import Health, http_health, kafka_health, postgres_health
from connectors.stack.postgres import local_dsn
from connectors.stack.register import PartRecord

# down: not started. dead: started, gone without being stopped. frozen: stopped by a signal. failing: runs, but
# does not answer well.
State = Literal["ok", "failing", "frozen", "dead", "down"]


@dataclass(frozen=True)
class PartStatus:
    """One line of `status`. pid, port and since (UTC) are None where there is nothing to tell."""

    name: str
    pid: int | None
    port: int | None
    health: State
    since: datetime | None
    detail: str


def part_status(name: str, record: PartRecord | None) -> PartStatus:
    """A part of ours, by its record in the register."""
    if record is None:
        return PartStatus(name, None, None, "down", None, "not started")
    since = datetime.fromtimestamp(record.started_at, UTC)
    if not record.process.alive():
        return PartStatus(name, None, record.port, "dead", None, f"pid {record.pid} has ended, see its log")
    if record.process.frozen():
        return PartStatus(name, record.pid, record.port, "frozen", since, "stopped by a signal")
    health = _ask(name, record)
    flavour = f"{record.flavour}: " if record.flavour else ""
    return PartStatus(name, record.pid, record.port, _state(health), since, flavour + health.detail)


def external_status(name: str, address: str) -> PartStatus:
    """A server of somebody else."""
    health = kafka_health(address) if name == "kafka" else postgres_health(address)
    return PartStatus(name, None, None, _state(health), None, f"not ours: {health.detail}")


def _ask(name: str, record: PartRecord) -> Health:
    if name == "kafka":
        return kafka_health(f"127.0.0.1:{record.port}")
    if name.startswith("postgres"):
        return postgres_health(local_dsn(record.port or 0))
    if record.health_url is not None:
        return http_health(record.health_url)
    return Health(True, "running")


def _state(health: Health) -> State:
    return "ok" if health.ok else "failing"
