"""When a worker ends: asked for by a signal or by the program, at once when asked for twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """asked: the worker shall drain. ended: it has. Belongs to one event loop.

    drain_s: how long handlers may go on, unless the one who asks says otherwise.
    """

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()
        self._hurry = asyncio.Event()

    def ask(self, deadline_s: float | None = None) -> None:
        """Drain within deadline_s. A second time: stop the handlers now."""
        if self.asked.is_set() or deadline_s == 0:
            self._hurry.set()
        if deadline_s is not None:
            self._drain_s = deadline_s
        self.asked.set()

    async def wait_for_idle(self, idle: Callable[[], Awaitable[None]]) -> None:
        """Until `idle` returns, the deadline has passed, or somebody is in a hurry."""
        waits = {asyncio.ensure_future(idle()), asyncio.ensure_future(self._hurry.wait())}
        try:
            await asyncio.wait(waits, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask, inside, when this is the main thread of a system that has them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            for number in SIGNALS:
                loop.add_signal_handler(number, self.ask)
        except NotImplementedError:  # Windows: Ctrl-C stays a KeyboardInterrupt
            yield
            return
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])
