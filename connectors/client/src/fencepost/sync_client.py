"""The HTTP API for blocking code: the asynchronous client on the loop of a background thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from fencepost.client import FencepostClient

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread, until closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fencepost-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; blocks the calling thread. Ctrl-C there cancels the coroutine."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start the coroutine there, without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """End the loop and its thread. What still runs there is dropped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _blocking(
    method: Callable[Concatenate[FencepostClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class SyncClient:
    """Use it as `with SyncClient(url, token) as fencepost: …`; the options are those of FencepostClient.

    Safe to share between threads.
    """

    def __init__(self, base_url: str, token: str, **options: Any) -> None:
        self._client = FencepostClient(base_url, token, **options)
        self._thread = LoopThread()

    create_job = _blocking(FencepostClient.create_job)
    update_job = _blocking(FencepostClient.update_job)
    pause_job = _blocking(FencepostClient.pause_job)
    resume_job = _blocking(FencepostClient.resume_job)
    delete_job = _blocking(FencepostClient.delete_job)
    trigger_job = _blocking(FencepostClient.trigger_job)
    backfill = _blocking(FencepostClient.backfill)
    job = _blocking(FencepostClient.job)
    run = _blocking(FencepostClient.run)
    why_run = _blocking(FencepostClient.why_run)
    why_occurrence = _blocking(FencepostClient.why_occurrence)
    doctor = _blocking(FencepostClient.doctor)
    cancel_run = _blocking(FencepostClient.cancel_run)
    replay_run = _blocking(FencepostClient.replay_run)
    dead_letters = _blocking(FencepostClient.dead_letters)
    replay_dead = _blocking(FencepostClient.replay_dead)
    queue = _blocking(FencepostClient.queue)
    set_queue = _blocking(FencepostClient.set_queue)
    pause_queue = _blocking(FencepostClient.pause_queue)
    resume_queue = _blocking(FencepostClient.resume_queue)
    tenant = _blocking(FencepostClient.tenant)
    set_tenant = _blocking(FencepostClient.set_tenant)
    pause_tenant = _blocking(FencepostClient.pause_tenant)
    resume_tenant = _blocking(FencepostClient.resume_tenant)
    tokens = _blocking(FencepostClient.tokens)
    create_token = _blocking(FencepostClient.create_token)
    rotate_token = _blocking(FencepostClient.rotate_token)
    revoke_token = _blocking(FencepostClient.revoke_token)
    whoami = _blocking(FencepostClient.whoami)
    declared_jobs = _blocking(FencepostClient.declared_jobs)
    live_schedules = _blocking(FencepostClient.live_schedules)
    preview_schedule = _blocking(FencepostClient.preview_schedule)
    query = _blocking(FencepostClient.query)
    lease = _blocking(FencepostClient.lease)
    poll = _blocking(FencepostClient.poll)
    heartbeat = _blocking(FencepostClient.heartbeat)
    complete = _blocking(FencepostClient.complete)
    fail = _blocking(FencepostClient.fail)
    release = _blocking(FencepostClient.release)
    snooze = _blocking(FencepostClient.snooze)
    heartbeat_many = _blocking(FencepostClient.heartbeat_many)
    complete_many = _blocking(FencepostClient.complete_many)
    fail_many = _blocking(FencepostClient.fail_many)
    release_many = _blocking(FencepostClient.release_many)
    snooze_many = _blocking(FencepostClient.snooze_many)

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._thread.run(self._client.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
