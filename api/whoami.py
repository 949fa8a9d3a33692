"""GET /v1/whoami: whom a token speaks for."""

from __future__ import annotations

from api.endpoints import Call
from schemas.http import NoBody
from schemas.http_declarations import Whoami


async def whoami(call: Call[NoBody]) -> Whoami:
    """Tell whom the token speaks for."""
    identity = call.identity
    return Whoami(tenant=identity.tenant, role=identity.role, queues=identity.queues and sorted(identity.queues))
