"""What a client of the SDK sees fail: calls, and items of batches."""

from __future__ import annotations

import json

import httpx


class FailedCalls(httpx.AsyncHTTPTransport):
    """Sends requests as ever, and notes those that get no answer or one that is no success, and such items of one.

    Of one client: closed with it. seen: where they are noted.
    """

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        try:
            response = await super().handle_async_request(request)
            content = await response.aread()
        except httpx.TransportError as error:
            self._seen.append(f"{path}: {error!r}")
            raise
        if not response.is_success:
            self._seen.append(f"{path}: {response.status_code} {response.text}")
        elif content.count(b'"status":200') < content.count(b'"status":'):
            items = json.loads(content).get("results", ())
            self._seen += [f"{path}: {item}" for item in items if item["status"] != 200]
        return response
