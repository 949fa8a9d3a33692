"""Queues and the tenant as a whole: how much waits, settings and limits, and pauses, while which nothing is leased.

Waiting runs stay where they are and go on from there; what is leased is not touched. Settings and pauses are written to
every shard, home first, since its own statements heed them; what they are is read from home.
"""

from __future__ import annotations

from msgspec import UNSET

from api.endpoints import Call
from api.permit_upkeep import PermitUpkeep
from api.ready_poll import ReadyPoll
from ledger.connection import session
from ledger.live_limits import read_live_limit, set_live_limit
from ledger.pauses import (
    Pause,
    count_waiting,
    list_pauses,
    pause_queue,
    pause_tenant,
    resume_queue,
    resume_tenant,
)
from ledger.permits import count_permits
from ledger.queue_settings import QueueName, read_queue_settings, set_rate
from ledger.shards import Shards
from ledger.tenant_limits import NO_LIMITS, TenantLimits, read_limits, set_limits
from ledger.tokens import Identity
from schemas import http_operations as http
from schemas.http import NoBody


class Queues:
    """poll: told of a queue that goes on, so that who waits on it here need not wait for its next look. permits: counts
    what is leased of a queue that gets a limit of live runs.

    A call that changes something answers 503 when a shard is away; the others have it then, and the same call again
    completes it.
    """

    def __init__(self, shards: Shards, poll: ReadyPoll, permits: PermitUpkeep) -> None:
        self._shards = shards
        self._poll = poll
        self._permits = permits

    async def show(self, call: Call[NoBody]) -> http.QueueView:
        """Show a queue: its pause, its settings, how many runs wait."""
        return await self._view(call.identity.tenant, call.queue())

    async def change(self, call: Call[http.QueueSettings]) -> http.QueueView:
        """Change a queue's settings. Owners and lease calls follow within seconds."""
        body, by = call.body, call.identity.token_id
        name = QueueName(call.identity.tenant, call.queue())
        rate = body.rate_per_second
        if rate is not UNSET:
            await self._shards.tell_all(lambda conn: set_rate(conn, *name, rate, by))
        named = {"max_live": body.max_live_runs, "max_live_per_key": body.max_live_runs_per_key}
        limits = {limit: value for limit, value in named.items() if value is not UNSET}
        if limits:
            await self._shards.tell_all(lambda conn: set_live_limit(conn, name, limits, by))
            await self._permits.count(name)
            self._poll.doubt(name)
        return await self._view(*name)

    async def pause(self, call: Call[NoBody]) -> http.QueueView:
        """Lease nothing of a queue until it is resumed."""
        tenant, queue = call.identity.tenant, call.queue()
        await self._shards.tell_all(lambda conn: pause_queue(conn, tenant, queue, call.identity.token_id))
        return await self._view(tenant, queue)

    async def resume(self, call: Call[NoBody]) -> http.QueueView:
        """Lease a paused queue's runs again."""
        tenant, queue = call.identity.tenant, call.queue()
        await self._shards.tell_all(lambda conn: resume_queue(conn, tenant, queue, call.identity.token_id))
        view = await self._view(tenant, queue)
        self._poll.doubt((tenant, queue))
        return view

    async def show_tenant(self, call: Call[NoBody]) -> http.TenantView:
        """Show the tenant: its pause, and its paused queues."""
        return await self._tenant_view(call.identity)

    async def change_tenant(self, call: Call[http.TenantSettings]) -> http.TenantView:
        """Set limits of the tenant; those that are not named stay.

        All processes follow within seconds: see api/lease_quotas.py, api/tenant_lines.py, streams/pending_caps.py.
        """
        identity, body = call.identity, call.body
        named = TenantLimits(body.leases_per_second, body.lease_burst, body.max_pending_runs, body.weight)  # type: ignore[arg-type]
        changes = {limit: value for limit, value in named._asdict().items() if value is not UNSET}
        if changes:
            await self._shards.tell_all(lambda conn: set_limits(conn, identity.tenant, changes, identity.token_id))
        return await self._tenant_view(identity)

    async def pause_tenant(self, call: Call[NoBody]) -> http.TenantView:
        """Lease nothing of the whole tenant until it is resumed."""
        identity = call.identity
        await self._shards.tell_all(lambda conn: pause_tenant(conn, identity.tenant, identity.token_id))
        return await self._tenant_view(identity)

    async def resume_tenant(self, call: Call[NoBody]) -> http.TenantView:
        """Lease a paused tenant's runs again."""
        identity = call.identity
        await self._shards.tell_all(lambda conn: resume_tenant(conn, identity.tenant, identity.token_id))
        return await self._tenant_view(identity)

    async def _view(self, tenant: str, queue: str) -> http.QueueView:
        async with session(self._shards.home) as conn:
            pauses = await list_pauses(conn, tenant, queue=queue)
            settings = await read_queue_settings(conn, tenant, queue)
            limit = await read_live_limit(conn, QueueName(tenant, queue))
            live = await count_permits(conn, QueueName(tenant, queue)) if limit else None
        waiting = await self._shards.ask_all(lambda conn: count_waiting(conn, tenant, queue))
        high, normal, low = map(sum, zip(*waiting, strict=True))
        own = _of(pauses, queue)
        return http.QueueView(
            queue=queue,
            paused=own is not None,
            paused_at=own and own.paused_at,
            tenant_paused=_of(pauses, None) is not None,
            rate_per_second=settings.rate_per_s,
            max_live_runs=limit and limit.max_live,
            max_live_runs_per_key=limit and limit.max_live_per_key,
            live_runs=live and live.live,
            waiting=http.LaneCounts(high=high, normal=normal, low=low),
        )

    async def _tenant_view(self, identity: Identity) -> http.TenantView:
        """The paused queues are those that the token may see."""
        async with session(self._shards.home) as conn:
            pauses = await list_pauses(conn, identity.tenant)
            limits = (await read_limits(conn)).get(identity.tenant, NO_LIMITS)
        whole = _of(pauses, None)
        queues = [pause.queue for pause in pauses if pause.queue is not None]
        return http.TenantView(
            tenant=identity.tenant,
            paused=whole is not None,
            paused_at=whole and whole.paused_at,
            paused_queues=sorted(queue for queue in queues if identity.queues is None or queue in identity.queues),
            leases_per_second=limits.leases_per_s,
            lease_burst=limits.lease_burst,
            max_pending_runs=limits.max_pending,
            weight=limits.weight,
        )


def _of(pauses: list[Pause], queue: str | None) -> Pause | None:
    return next((pause for pause in pauses if pause.queue == queue), None)
