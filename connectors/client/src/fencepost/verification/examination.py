"""One verification, from the first page to the certificate: pages are judged, and what they leave open is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from fencepost.errors import Invalid, TryAgain
from fencepost.verification.certificate import Certificate, Unchecked, Violation
from fencepost.verification.event_source import EventSource, Inquiry
from fencepost.verification.events import Event
from fencepost.verification.verifier import Verifier

SETTLE_EVERY_S = 15.0
LOOK_EVERY_S = 1.0
ASKED_MAX = 1_000  # of what is overdue


class Examination:
    """source, inquiry: whom to believe. since: where the range begins. name, tenant: for the certificate.

    settle_every_s: when following, how often it is looked for what is missing.
    """

    def __init__(
        self,
        source: EventSource,
        inquiry: Inquiry,
        verifier: Verifier,
        *,
        since: datetime,
        name: str,
        tenant: str | None,
        settle_every_s: float = SETTLE_EVERY_S,
    ) -> None:
        self.verifier = verifier
        self._source, self._inquiry = source, inquiry
        self._since, self._name, self._tenant = since, name, tenant
        self._settle_every_s = settle_every_s
        self._unchecked: list[Unchecked] = []

    async def begin(self) -> int:
        """Learn what was there when the range began; returns how much there is to read, as Page.size counts."""
        size = await self._source.measure()
        try:
            async for start in self._source.jobs_at_start():
                self.verifier.begin_job(start.defined, self._since, is_paused=start.is_paused)
        except Invalid as error:  # the query took too long
            self._unchecked.append(Unchecked("occurrences of jobs from before the range", str(error)))
        return size

    async def read(self, on_page: Callable[[int], None]) -> None:
        """Judge what was there at the beginning. on_page: hears of the size of each page."""
        async for page in self._source.pages():
            await self._take(page.events)
            on_page(page.size)

    async def follow(
        self,
        stop: asyncio.Event,
        on_found: Callable[[Sequence[Violation]], None],
        on_trouble: Callable[[TryAgain], None],
    ) -> None:
        """Judge what comes until `stop`, over every failure that time can mend.

        on_found: hears of violations as they are found. on_trouble: of such a failure, after each try.
        """
        told = len(self.verifier.violations)
        settle_at = time.monotonic() + self._settle_every_s
        while not stop.is_set():
            try:
                events = await self._source.new_page()
                await self._take(events)
                if time.monotonic() >= settle_at:
                    await self._settle(datetime.now(UTC))
                    settle_at = time.monotonic() + self._settle_every_s
            except TryAgain as error:
                events = []
                on_trouble(error)
            found = self.verifier.violations[told:]
            told += len(found)
            if found:
                on_found(found)
            if not events:
                await _wait(stop, LOOK_EVERY_S)

    async def conclude(self, until: datetime) -> Certificate:
        """Nothing more is read: judge what is missing."""
        self.verifier.finish()
        try:
            through, is_complete = await self._settle(until)
        except TryAgain as error:
            through, is_complete = None, False
            self._unchecked.append(Unchecked("what should have happened and did not", str(error)))
        return self.verifier.certificate(
            source=self._name,
            tenant=self._tenant,
            since=self._since,
            until=until,
            through=through,
            is_complete=is_complete,
            unchecked=self._unchecked,
        )

    async def _take(self, events: Sequence[Event]) -> None:
        if not events:
            return
        unknown = self.verifier.unknown_runs(events)
        if unknown:
            for past in await self._source.past_of(unknown):
                self.verifier.recall(past)
        for event in events:
            self.verifier.take(event)
        self.verifier.forget(min(event.at for event in events))

    async def _settle(self, until: datetime) -> tuple[datetime | None, bool]:
        """How far it could be judged what is missing, and whether that is enough. Raises TryAgain."""
        settled = await self._inquiry.settled(until, self.verifier.newest)
        if settled.note is not None and settled.note not in self._unchecked:
            self._unchecked.append(settled.note)
        if settled.through is None:
            return None, settled.is_complete
        suspects = self.verifier.settle(settled.through)
        for suspect in suspects[:ASKED_MAX]:
            self.verifier.explain(suspect, await self._inquiry.why(suspect))
        for suspect in suspects[ASKED_MAX:]:
            self.verifier.explain(suspect, f"more than {ASKED_MAX} are overdue: the others were not asked about")
        return settled.through, settled.is_complete


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    """Until `stop`, but not longer."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
