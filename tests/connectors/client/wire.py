"""The way between client and server, with faults on demand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx


class Wire(httpx.AsyncBaseTransport):
    """The way to the server; `faults` says what becomes of a request: None, or what to do instead of passing it on.

    A fault is called with the request and `pass_on`, which has the server handle it: raise before that for a request
    that never arrived, after it for an answer that was lost.
    """

    def __init__(self, server: httpx.AsyncBaseTransport) -> None:
        self._server = server
        self.fault: Callable[[httpx.Request, Callable[[], Any]], Any] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async def pass_on() -> httpx.Response:
            return await self._server.handle_async_request(request)

        response: httpx.Response = await (self.fault(request, pass_on) if self.fault else pass_on())
        return response

    async def aclose(self) -> None:
        await self._server.aclose()

    def lose_answers(self, path_end: str, times: int) -> None:
        """Let the server handle the next calls of a path, and lose what it says."""
        left = times

        async def fault(request: httpx.Request, pass_on: Callable[[], Any]) -> httpx.Response:
            nonlocal left
            response: httpx.Response = await pass_on()
            if left and request.url.path.endswith(path_end):
                left -= 1
                raise httpx.ReadError("the answer was lost", request=request)
            return response

        self.fault = fault

    def cut(self, path_end: str) -> None:
        """Let no call of a path arrive any more."""

        async def fault(request: httpx.Request, pass_on: Callable[[], Any]) -> httpx.Response:
            if request.url.path.endswith(path_end):
                raise httpx.ConnectError("cut", request=request)
            response: httpx.Response = await pass_on()
            return response

        self.fault = fault


def json_answer(status: int, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, content=json.dumps(body).encode(), headers=headers)
