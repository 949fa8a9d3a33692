"""A rolling restart, as a deploy does it: one process after the other, and never two of a role at once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

import httpx

from bench.balancer import Balancer
from connectors.stack import StackError
from connectors.stack.part import Part
from fencepostd.local import Local

# Who is told before who tells: APIs hear the owners' hints, the history and the owners what the relay publishes.
ORDER = ("api", "history", "streams", "relay")
GRACE_S = 30.0  # until SIGKILL, as docs/operating.md has it
READY_WITHIN_S = 180.0
LOOK_S = 0.05


class Restarted(NamedTuple):
    """One process. ended_s: from SIGTERM until it was gone. began_s: from its new start until it was ready."""

    part: str
    ended_s: float
    began_s: float


def role_of(part: str) -> str:
    return part.partition("-")[0]


def in_order(parts: Iterable[str]) -> list[str]:
    """The processes of the roles, one after the other."""
    return sorted((part for part in parts if role_of(part) in ORDER), key=lambda part: ORDER.index(role_of(part)))


def restart(local: Local, part: str, balancer: Balancer | None = None) -> Restarted:
    """SIGTERM, and once it is gone a new process; returns when that is ready, and gets calls from the balancer before
    it. Raises StackError when it had to be killed, or does not get ready."""
    began = time.monotonic()
    Part(part, local.state).end(GRACE_S)
    ended = time.monotonic()
    if ended - began >= GRACE_S:
        raise StackError(f"{part} did not end within {GRACE_S:g} s")
    local.stack.start_part(part)
    port = local.stack.port_for(part)
    while not (_is_ready(port) and (balancer is None or balancer.sends_to(port))):
        if time.monotonic() - ended > READY_WITHIN_S:
            raise StackError(f"{part} is not ready after {READY_WITHIN_S:g} s")
        time.sleep(LOOK_S)
    return Restarted(part, ended - began, time.monotonic() - ended)


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5, trust_env=False).status_code == HTTPStatus.OK
    except httpx.HTTPError:
        return False
