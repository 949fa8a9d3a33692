"""POST /v1/query: the history service answers, confined to the caller's tenant; the API only checks who asks."""

from __future__ import annotations

from api.endpoints import Call, Reply
from api.history_client import HistoryClient
from schemas import http_queries


class Queries:
    def __init__(self, history: HistoryClient) -> None:
        self._history = history

    async def query(self, call: Call[http_queries.Query]) -> Reply[http_queries.QueryAnswer]:
        """Ask the tenant's history in SQL.

        Raises HistoryAway.
        """
        reply = await self._history.query(call.identity.tenant, call.body.sql, call.body.limit)
        headers = [(b"content-type", reply.content_type)]
        if reply.retry_after is not None:
            headers.append((b"retry-after", reply.retry_after))
        return Reply(reply.body, reply.status, headers)
