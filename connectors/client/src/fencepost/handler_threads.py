"""Threads for blocking handlers."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class _Call(NamedTuple):
    function: Callable[[Any], Any]
    argument: Any
    answer: asyncio.Future[tuple[Any, BaseException | None]]


class HandlerThreads:
    """As many threads as calls are under way at once.

    Daemon threads, unlike those of concurrent.futures: a handler that ignores the request to stop must not keep the
    process, and with it the hold on nothing, alive.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._under_way = 0

    async def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """The function's result, or its exception, from one of the threads."""
        self._under_way += 1
        if self._under_way > self._threads:
            self._start_thread()
        answer: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, argument, answer))
        try:
            result, error = await answer
        finally:
            self._under_way -= 1
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let every thread end after its call. Does not wait."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"fencepost-handler-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = _outcome(call)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits for the answer
                call.answer.get_loop().call_soon_threadsafe(_deliver, call.answer, (result, error))


def _outcome(call: _Call) -> tuple[Any, BaseException | None]:
    try:
        return call.function(call.argument), None
    except BaseException as error:
        return None, error


def _deliver(
    answer: asyncio.Future[tuple[Any, BaseException | None]], outcome: tuple[Any, BaseException | None]
) -> None:
    if not answer.done():
        answer.set_result(outcome)
