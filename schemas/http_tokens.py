"""The bodies of what administrators do with their tenant's tokens.

The rules of schemas/http.py hold here too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from schemas.commands import Name
from schemas.http import QUEUES_A_CALL, Answer, Request

TokenId = Annotated[str, Meta(pattern=r"^[0-9a-f]{12}\Z", examples=["4f2a90c1b7de"])]
LongSeconds = Annotated[float, Meta(ge=0, le=10 * 366 * 86_400)]


class TokenQuery(Request):
    """GET /v1/tokens, in its query string. after: the `next` of the page before."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: TokenId | None = None


class NewToken(Request):
    """POST /v1/tokens. queues: of those that the caller may use itself; None: all of these.

    expires_in_seconds: from now on; None: it is good until it is revoked.
    """

    role: Literal["producer", "worker", "operator", "admin"]
    queues: Annotated[list[Name], Meta(min_length=1, max_length=QUEUES_A_CALL)] | None = None
    expires_in_seconds: LongSeconds | None = None


class TokenRotation(Request):
    """POST /v1/tokens/{id}/rotate. overlap_seconds: how long the old one stays good, if it does not end before.

    expires_in_seconds: of the new one, as in NewToken.
    """

    overlap_seconds: LongSeconds = 3_600
    expires_in_seconds: LongSeconds | None = None


class Token(Answer, kw_only=True):
    """What is told of a token: all but its secret. queues: None: all of the tenant's.

    replaced_by: what a rotation has made of it. last_used_at: a minute or two late; None: never. state: in force,
    expired or revoked.
    """

    token_id: str
    role: str
    queues: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    replaced_by: str | None
    last_used_at: datetime | None
    state: str


class TokenPage(Answer, kw_only=True):
    """In the order of their ids, with those that ended in the last 90 days. next: as in DeadPage."""

    tokens: list[Token]
    next: str | None


class MadeToken(Answer, kw_only=True):
    """A new token. token: the whole of it, this once: nobody can tell it again."""

    token_id: str
    token: str
