"""The access log: a line of JSON for a call, with who called what and how it went, and nothing of what was said.

A route stands there as its template, so that neither ids nor query strings are in it; a token by its id.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from ledger.tokens import Identity

Logged = Literal["all", "failures", "off"]
_LEAST_STATUS: dict[Logged, int] = {"all": 0, "failures": 400, "off": 1_000}


class AccessLine(Struct, rename="camel"):
    """tenant, token_id: None when the call was let in by no token."""

    at: datetime
    method: str
    route: str
    status: int
    ms: float
    tenant: str | None
    token_id: str | None


class AccessLog:
    """least_status: calls below it are not logged, so that they cost no more than a comparison. write: of a line.

    probes: log calls of machines that watch, too: those of routes that take no token.
    """

    def __init__(self, logged: Logged, write: Callable[[bytes], object], *, probes: bool = False) -> None:
        self.least_status, self._write, self.probes = _LEAST_STATUS[logged], write, probes

    def tell(self, name: str, status: int, ms: float, identity: Identity | None) -> None:
        """name: the endpoint's, its method and its route."""
        method, _, route = name.partition(" ")
        who = (identity.tenant, identity.token_id) if identity else (None, None)
        self._write(
            msgspec.json.encode(AccessLine(datetime.now(UTC), method, route, status, round(ms, 3), *who)) + b"\n"
        )


def to_standard_output(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


NO_ACCESS_LOG = AccessLog("off", lambda _: None)
