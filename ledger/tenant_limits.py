"""What administrators have set of a tenant, a row a tenant. Who works by a limit reads it here now and then."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from ledger.audits import note
from ledger.connection import Connection


class TenantLimits(NamedTuple):
    """None: no limit. lease_burst: how many leases at once after a while without any; None: those of a second.

    max_pending: from how many waiting and leased runs on no job is created. weight: of its share where tenants compete;
    None: 1.
    """

    leases_per_s: float | None = None
    lease_burst: int | None = None
    max_pending: int | None = None
    weight: int | None = None


NO_LIMITS = TenantLimits()

READ_LIMITS = f"SELECT tenant, {', '.join(TenantLimits._fields)} FROM tenant_limits"


async def read_limits(conn: Connection) -> dict[str, TenantLimits]:
    """The limits of every tenant that has, or had, one."""
    rows = await (await conn.execute(READ_LIMITS)).fetchall()
    return {tenant: TenantLimits(*limits) for tenant, *limits in rows}


class Quota(NamedTuple):
    """Of leases, as it is now. set_at: since when at the latest."""

    leases_per_s: float
    set_at: datetime


READ_QUOTA = "SELECT leases_per_s, set_at FROM tenant_limits WHERE tenant = %s AND leases_per_s IS NOT NULL"


async def read_quota(conn: Connection, tenant: str) -> Quota | None:
    """None for a tenant without one."""
    row = await (await conn.execute(READ_QUOTA, (tenant,))).fetchone()
    return Quota(*row) if row else None


_NAMES = ("leasesPerSecond", "leaseBurst", "maxPendingRuns", "weight")  # as the API has them
_WORDS = ", ".join(
    f"'{name}: ' || coalesce({limit}::text, 'none')" for limit, name in zip(TenantLimits._fields, _NAMES, strict=True)
)
SET_LIMITS = f"""
WITH done AS (
    INSERT INTO tenant_limits AS l (tenant, leases_per_s, lease_burst, max_pending, weight, set_by, set_at)
    VALUES (
        %(tenant)s, %(leases_per_s)s, %(lease_burst)s, %(max_pending)s, %(weight)s, %(by)s,
        coalesce(%(now)s::timestamptz, now())
    )
    ON CONFLICT (tenant) DO UPDATE
    SET leases_per_s = CASE WHEN 'leases_per_s' = ANY (%(named)s) THEN excluded.leases_per_s ELSE l.leases_per_s END,
        lease_burst = CASE WHEN 'lease_burst' = ANY (%(named)s) THEN excluded.lease_burst ELSE l.lease_burst END,
        max_pending = CASE WHEN 'max_pending' = ANY (%(named)s) THEN excluded.max_pending ELSE l.max_pending END,
        weight = CASE WHEN 'weight' = ANY (%(named)s) THEN excluded.weight ELSE l.weight END,
        set_by = excluded.set_by, set_at = excluded.set_at
    RETURNING tenant, leases_per_s, lease_burst, max_pending, weight
), noted AS ({note("done", action="'tenant_changed'", subject="tenant", detail=f"concat_ws(', ', {_WORDS})")})
SELECT tenant FROM done
"""


async def set_limits(
    conn: Connection, tenant: str, changes: Mapping[str, float | None], by: str, *, now: datetime | None = None
) -> None:
    """Change the limits that are named, by the fields of TenantLimits; the others stay. by: a token's id."""
    asked = {**NO_LIMITS._asdict(), **changes, "named": list(changes), "tenant": tenant, "by": by, "now": now}
    await conn.execute(SET_LIMITS, asked)
