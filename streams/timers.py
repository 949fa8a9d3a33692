"""What an owner remembers of time: waiting runs, leases and recurring jobs, and the keys that order them on disk.

Keys, all big-endian so that order is time order (instants in microseconds):
    d <due> <run id>      a waiting run             -> WaitingRun
    l <expires> <run id>  a leased run              -> empty
    c <cursor> <job id>   a job's next occurrence   -> empty
    r <run id>            which of d or l, when, version
    j <job id>            JobTimer
    p                     Position
    o                     the owner of its epoch
    z                     the tzdata that all cursors are computed with
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from schemas.commands import CatchUp

TIME = struct.Struct(">Q")
WHERE = struct.Struct(">cQI")  # kind, instant, version: the first nine bytes begin the timer's key
POSITION = struct.Struct(">QQ")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = datetime.resolution


def to_us(instant: datetime) -> int:
    """Microseconds since 1970; an instant before it counts as 0, which is as overdue as can be."""
    return max(0, (instant - _EPOCH) // _MICROSECOND)


def from_us(instant_us: int) -> datetime:
    return _EPOCH + instant_us * _MICROSECOND


class Rhythm(NamedTuple):
    """Instants that are a period apart, from the phase on; every instant unless given."""

    period_us: int = 1
    phase_us: int = 0

    def latest_us(self, now_us: int) -> int:
        """The last one by now."""
        return now_us - (now_us - self.phase_us) % self.period_us

    def next_us(self, at_us: int) -> int:
        """The first one that is not before."""
        return at_us + (self.phase_us - at_us) % self.period_us


EVERY_INSTANT = Rhythm()


class Position(NamedTuple):
    """epoch: the owner's that wrote this state. offset: the next of run-events to fold."""

    epoch: int
    offset: int


class Waiting(Struct, frozen=True, array_like=True):
    """Where a run waits: what a hint tells beside its id."""

    tenant: str
    queue: str
    lane: str


class WaitingRun(Struct, frozen=True, array_like=True):
    """A run that waits. gated: before it is hinted its job's overlap rule is applied, see streams/admissions.py."""

    tenant: str
    queue: str
    lane: str
    job_id: bytes = b""
    gated: bool = False

    @property
    def where(self) -> Waiting:
        return Waiting(self.tenant, self.queue, self.lane)


class JobTimer(Struct, frozen=True, array_like=True):
    """What deciding a job's next occurrence needs. Only recurring jobs have one. cursor_us: the pending occurrence."""

    version: int
    cursor_us: int
    created_us: int
    schedule: dict[str, Any]
    catch_up: CatchUp = "latest"
    catch_up_limit: int = 1_000
    start_deadline_s: float | None = None


_ONE_OFF = ("runAt", "delaySeconds")


class _Definition(Struct, rename="camel"):
    """A job's definition, as far as a timer needs it."""

    schedule: dict[str, Any]
    catch_up: CatchUp = "latest"
    catch_up_limit: int = 1_000
    start_deadline_seconds: float | None = None


_decode_definition = msgspec.json.Decoder(_Definition).decode


def timer_of(version: int, cursor_us: int, created_us: int, definition_json: str) -> JobTimer | None:
    """The timer of a job with a pending occurrence; None for one that fires once.

    Of a definition that this build cannot read it has no schedule: whoever is to decide the job finds that out.
    """
    try:
        definition = _decode_definition(definition_json)
    except msgspec.DecodeError:
        definition = _Definition({})
    if not definition.schedule.keys().isdisjoint(_ONE_OFF):
        return None
    return JobTimer(
        version,
        cursor_us,
        created_us,
        definition.schedule,
        definition.catch_up,
        definition.catch_up_limit,
        definition.start_deadline_seconds,
    )


encode = msgspec.msgpack.Encoder().encode
decode_waiting = msgspec.msgpack.Decoder(WaitingRun).decode
decode_job = msgspec.msgpack.Decoder(JobTimer).decode
