"""What a forecast is made from by HTTP: when every active job fires, and how long runs took."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from msgspec import Raw, Struct

from fencepost.base_client import BaseClient

PAGE = 5_000


class LiveSchedule(Struct, rename="camel", frozen=True, kw_only=True):
    """schedule: its JSON form, as text. next_run_at: the pending occurrence."""

    job_id: UUID
    queue: str
    schedule: Raw
    created_at: datetime
    next_run_at: datetime


class LivePage(Struct, frozen=True):
    """next: what to give as `after` for the next page; None on the last. tzdata: the server's time zones."""

    schedules: list[LiveSchedule]
    tzdata: str
    next: UUID | None = None


class ForecastClient(BaseClient):
    """The call behind `fencepost forecast`."""

    async def live_schedules(self, *, limit: int | None = None, after: UUID | None = None) -> LivePage:
        """A page of the active jobs that have an occurrence left, in the order of their ids. limit: at most 10,000."""
        query: dict[str, Any] = {"limit": limit or PAGE} | ({} if after is None else {"after": after})
        return await self._get(f"/v1/schedules?{urlencode(query)}", LivePage)
