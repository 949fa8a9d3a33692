"""What a client of the SDK sees fail: calls, and items of batches."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx


class FailedCalls(httpx.AsyncHTTPTransport):
    """Sends requests as ever, and notes those that get no answer or one that is no success, and such items of one.

    Of one client: closed with it. note: is told of each.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(limits=httpx.Limits(max_connections=100, keepalive_expiry=30))  # the SDK's own
        self._note = note

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        try:
            response = await super().handle_async_request(request)
            content = await response.aread()
        except httpx.TransportError as error:
            self._note(f"{path}: {error!r}")
            raise
        if not response.is_success:
            self._note(f"{path}: {response.status_code} {response.text}")
        elif content.count(b'"status":200') < content.count(b'"status":'):
            items = json.loads(content).get("results", ())
            for item in items:
                if item["status"] != 200:
                    self._note(f"{path}: {item}")
        return response
