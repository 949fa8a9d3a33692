"""What the events leave open, asked of the server, or left open."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

from fencepost.client import FencepostClient
from fencepost.errors import NotFound
from fencepost.verification.certificate import Unchecked
from fencepost.verification.event_source import Settled
from fencepost.verification.overdue import Suspect

# Of a relay and a history that are well: how long an event may be on its way.
ON_ITS_WAY = timedelta(minutes=1)
_ASK_AGAIN_S = 2.0  # what has just ended may be between the ledger and the history
_ASKED_AT_MOST = 3
_WAYS = ("outbox", "history")  # the doctor's checks of what an event passes

_RUN_WAITS = {
    "pending": "the run waits in its queue: see `fencepost why`",
    "held": "the run is held, for its job is paused",
    "leased": "the run is being executed, its lease was extended",
    "dead": "the run is dead",
}
_ENDED = "the run has ended since"
_DECIDED = {
    "run": "the occurrence has its decision since",
    "skipped": "the occurrence has its decision since",
    "not_decided": "the occurrence waits for its decision: see `fencepost doctor`",
    "not_an_occurrence": "by the schedule that the job has now it is no occurrence",
}


class ServerInquiry:
    """Asks the API."""

    def __init__(self, client: FencepostClient) -> None:
        self._client = client

    async def settled(self, until: datetime, newest: datetime | None) -> Settled:
        """By what the doctor finds of the way that events take."""
        findings = {each.check: each for each in (await self._client.doctor()).findings}
        behind = [findings[way] for way in _WAYS if way not in findings or findings[way].status != "ok"]
        if behind:
            why = "; ".join(f"{each.check}: {each.detail}" for each in behind)
            return Settled(
                _before(until, newest), False, Unchecked("the newest events", f"the history is behind: {why}")
            )
        return Settled(min(until, datetime.now(UTC) - ON_ITS_WAY), True)

    async def why(self, suspect: Suspect) -> str | None:
        """What the ledger says; asked a few times before it is believed that it knows nothing."""
        for asked in range(_ASKED_AT_MOST):
            if asked:
                await asyncio.sleep(_ASK_AGAIN_S)
            if (why := await self._ask(suspect)) is not None:
                return why
        return None

    async def _ask(self, suspect: Suspect) -> str | None:
        try:
            if suspect.run_id is not None:
                run = await self._client.run(UUID(suspect.run_id))
                # `unknown`: the history has it as if it went on, and the ledger does not have it.
                return None if run.state == "unknown" else _RUN_WAITS.get(run.state, _ENDED)
            job = await self._client.job(UUID(suspect.job_id))
            if job.state != "active":
                return f"the job is {job.state} by now"
            assert suspect.occurrence is not None
            answer = await self._client.why_occurrence(job.job_id, suspect.occurrence)
            return _DECIDED.get(answer.decision)
        except NotFound:
            return None


class NobodyToAsk:
    """Of the topic: what waits for a worker there cannot be told from what is lost; what has no decision is missing."""

    async def settled(self, until: datetime, newest: datetime | None) -> Settled:
        """As far as the newest event."""
        return Settled(_before(until, newest), newest is not None)

    async def why(self, suspect: Suspect) -> str | None:
        """A run may have no worker."""
        return "only the API can tell whether these runs wait" if suspect.run_id is not None else None


def _before(until: datetime, newest: datetime | None) -> datetime | None:
    return None if newest is None else min(until, newest)
