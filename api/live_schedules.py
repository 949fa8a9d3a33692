"""GET /v1/schedules: when every active job of the tenant fires, page by page, as a forecast is made from it."""

from __future__ import annotations

from itertools import chain

from msgspec import Raw

from api.endpoints import Call
from ledger import live_schedules
from ledger.live_schedules import read_live_schedules
from ledger.shards import Shards
from schemas.http_declarations import LivePage, LiveQuery, LiveSchedule
from schemas.zones import TZDATA_VERSION


class LiveSchedules:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def list(self, call: Call[LiveQuery]) -> LivePage:
        """List when active jobs fire, page by page; a token that is scoped to queues sees those of these."""
        identity, query = call.identity, call.body
        queues = None if identity.queues is None else sorted(identity.queues)
        found = await self._shards.ask_all(
            lambda conn: read_live_schedules(
                conn, identity.tenant, queues=queues, after=query.after, limit=query.limit + 1
            )
        )
        schedules = sorted(chain.from_iterable(found), key=lambda live: live.job_id)
        page = schedules[: query.limit]
        after = page[-1].job_id if len(schedules) > len(page) else None
        return LivePage(schedules=[_view(live) for live in page], tzdata=TZDATA_VERSION, next=after)


def _view(live: live_schedules.LiveSchedule) -> LiveSchedule:
    return LiveSchedule(
        job_id=live.job_id,
        queue=live.queue,
        schedule=Raw(live.schedule.encode()),
        created_at=live.created_at,
        next_run_at=live.next_fire_at,
    )
