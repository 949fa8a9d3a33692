"""Queues and the tenant as a whole: how much waits, settings, and pauses, during which nothing of theirs is leased.

Waiting runs stay where they are and go on from there; what is leased is not touched.
"""

from __future__ import annotations

from msgspec import UNSET

from api.endpoints import Call
from api.problems import Problem
from api.ready_poll import ReadyPoll
from ledger.connection import Connection, Pool, session
from ledger.pauses import (
    Pause,
    count_waiting,
    list_pauses,
    pause_queue,
    pause_tenant,
    resume_queue,
    resume_tenant,
)
from ledger.queue_settings import read_queue_settings, set_rate
from ledger.tokens import Identity
from schemas import http_operations as http
from schemas.http import NoBody


class Queues:
    """poll: told of a queue that goes on, so that who waits on it here need not wait for its next look."""

    def __init__(self, pool: Pool, poll: ReadyPoll) -> None:
        self._pool = pool
        self._poll = poll

    async def show(self, call: Call[NoBody]) -> http.QueueView:
        """GET /v1/queues/{queue}."""
        tenant, queue = call.identity.tenant, call.queue()
        async with session(self._pool) as conn:
            return await _queue_view(conn, tenant, queue)

    async def change(self, call: Call[http.QueueSettings]) -> http.QueueView:
        """PATCH /v1/queues/{queue}. Owners follow within seconds: see streams/queue_rates.py."""
        tenant, queue, rate = call.identity.tenant, call.queue(), call.body.rate_per_second
        async with session(self._pool) as conn:
            if rate is not UNSET:
                await set_rate(conn, tenant, queue, rate, call.identity.token_id)
            return await _queue_view(conn, tenant, queue)

    async def pause(self, call: Call[NoBody]) -> http.QueueView:
        """POST /v1/queues/{queue}/pause."""
        tenant, queue = call.identity.tenant, call.queue()
        async with session(self._pool) as conn:
            await pause_queue(conn, tenant, queue, call.identity.token_id)
            return await _queue_view(conn, tenant, queue)

    async def resume(self, call: Call[NoBody]) -> http.QueueView:
        """POST /v1/queues/{queue}/resume."""
        tenant, queue = call.identity.tenant, call.queue()
        async with session(self._pool) as conn:
            await resume_queue(conn, tenant, queue)
            view = await _queue_view(conn, tenant, queue)
        self._poll.doubt((tenant, queue))
        return view

    async def show_tenant(self, call: Call[NoBody]) -> http.TenantView:
        """GET /v1/tenant."""
        async with session(self._pool) as conn:
            return await _tenant_view(conn, call.identity)

    async def pause_tenant(self, call: Call[NoBody]) -> http.TenantView:
        """POST /v1/tenant/pause."""
        _require_all_queues(call.identity)
        async with session(self._pool) as conn:
            await pause_tenant(conn, call.identity.tenant, call.identity.token_id)
            return await _tenant_view(conn, call.identity)

    async def resume_tenant(self, call: Call[NoBody]) -> http.TenantView:
        """POST /v1/tenant/resume."""
        _require_all_queues(call.identity)
        async with session(self._pool) as conn:
            await resume_tenant(conn, call.identity.tenant)
            return await _tenant_view(conn, call.identity)


def _require_all_queues(identity: Identity) -> None:
    if identity.queues is not None:
        raise Problem(403, "the token is scoped to queues; this is about all of the tenant's", field="queue")


async def _queue_view(conn: Connection, tenant: str, queue: str) -> http.QueueView:
    pauses = await list_pauses(conn, tenant, queue=queue)
    high, normal, low = await count_waiting(conn, tenant, queue)
    settings = await read_queue_settings(conn, tenant, queue)
    own = _of(pauses, queue)
    return http.QueueView(
        queue=queue,
        paused=own is not None,
        paused_at=own and own.paused_at,
        tenant_paused=_of(pauses, None) is not None,
        rate_per_second=settings.rate_per_s,
        waiting=http.LaneCounts(high=high, normal=normal, low=low),
    )


async def _tenant_view(conn: Connection, identity: Identity) -> http.TenantView:
    """The paused queues are those that the token may see."""
    pauses = await list_pauses(conn, identity.tenant)
    whole = _of(pauses, None)
    queues = [pause.queue for pause in pauses if pause.queue is not None]
    return http.TenantView(
        tenant=identity.tenant,
        paused=whole is not None,
        paused_at=whole and whole.paused_at,
        paused_queues=sorted(queue for queue in queues if identity.queues is None or queue in identity.queues),
    )


def _of(pauses: list[Pause], queue: str | None) -> Pause | None:
    return next((pause for pause in pauses if pause.queue == queue), None)
