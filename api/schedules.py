"""POST /v1/schedules/preview: what a schedule would do. Nothing is read and nothing is written."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from api.endpoints import Call
from api.problems import invalid_schedule
from schemas import http
from schemas.errors import InvalidSchedule
from schemas.schedule_preview import ComingFire, SchedulePreview, instant_from
from schemas.zones import TZDATA_VERSION


async def preview_schedule(call: Call[http.PreviewRequest]) -> http.Preview:
    """Show when a schedule would fire.

    Raises Problem 422, or InvalidSchedule for `from`.
    """
    body = call.body
    # In whole seconds: fires are, and what counts from now would otherwise count from some odd microsecond.
    after = datetime.now(UTC).replace(microsecond=0) if body.start is None else instant_from(body.start)
    try:
        preview = SchedulePreview(body.schedule, job_id=body.job_id)
    except InvalidSchedule as error:
        raise invalid_schedule(error) from None
    # A thousand fires take long enough to hold up the leases of others.
    fires = await asyncio.to_thread(lambda: [_view(fire) for fire in preview.coming(after, body.count)])
    return http.Preview(fires, TZDATA_VERSION)


def _view(fire: ComingFire) -> http.PreviewedFire:
    return http.PreviewedFire(fire.scheduled_for, fire.local.isoformat(), fire.zone, fire.mark, fire.due_at)
