"""Where events come from, and who may be asked about what they leave open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import NamedTuple, Protocol

from fencepost.verification.certificate import Unchecked
from fencepost.verification.events import Event, JobEvent, RunEvent
from fencepost.verification.overdue import Suspect


class Page(NamedTuple):
    """Some events, each partition's in the order of the topic. size: how much of what was measured it is."""

    events: list[Event]
    size: int


class Start(NamedTuple):
    """A recurring job at the range's beginning. defined: its newest event that has its definition."""

    defined: JobEvent
    is_paused: bool


class EventSource(Protocol):
    """A source of a range of events. All calls may raise FencepostError."""

    async def measure(self) -> int:
        """Look how much there is now, in whatever `Page.size` counts. Comes before all others."""

    def jobs_at_start(self) -> AsyncIterator[Start]:
        """The recurring jobs that were there when the range began, as far as the source can tell."""

    def pages(self) -> AsyncIterator[Page]:
        """What was there when it was measured."""

    async def new_page(self) -> list[Event]:
        """What has come since, or nothing yet."""

    async def past_of(self, first_seen: Mapping[str, int]) -> list[RunEvent]:
        """What is known of runs before the version that was seen first."""

    async def close(self) -> None:
        """Nothing more is wanted of it."""


class Settled(NamedTuple):
    """through: all events before it are in. is_complete: whether they are for the whole range. note: if not, why."""

    through: datetime | None
    is_complete: bool
    note: Unchecked | None = None


class Inquiry(Protocol):
    """Someone who knows more than the events."""

    async def settled(self, until: datetime, newest: datetime | None) -> Settled:
        """How far the events are in. newest: when the last one happened that was seen."""

    async def why(self, suspect: Suspect) -> str | None:
        """What keeps what is overdue, in a few words; None when nobody knows of it any more."""
