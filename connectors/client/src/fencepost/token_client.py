"""What administrators do by HTTP with the tokens of their tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, urlencode

from msgspec import Struct

from fencepost.base_client import BaseClient
from fencepost.http_calls import decoded

Role = Literal["producer", "worker", "operator", "admin"]


class Token(Struct, rename="camel", kw_only=True, frozen=True):
    """What is told of a token: all but its secret. queues: None: all of the tenant's.

    replaced_by: what a rotation has made of it. last_used_at: a minute or two late; None: never. state: in force,
    expired or revoked.
    """

    token_id: str
    role: str
    queues: list[str] | None = None
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    state: str
    replaced_by: str | None = None
    revoked_at: datetime | None = None


class TokenPage(Struct, frozen=True):
    """next: what to give as `after` for the next page; None on the last."""

    tokens: list[Token]
    next: str | None = None


class MadeToken(Struct, rename="camel", kw_only=True, frozen=True):
    """token: the whole of it, this once."""

    token_id: str
    token: str


class TokenClient(BaseClient):
    """The calls of an administrator. None is about a token that may more than the caller's own.

    What makes a token is not repeated by itself when its answer got lost: that token is in the list, to be revoked.
    """

    async def tokens(self, *, limit: int = 100, after: str | None = None) -> TokenPage:
        """A page of the tokens, by their ids; those that have ended are in it for 90 days. limit: at most 1,000."""
        query = {"limit": limit, **({} if after is None else {"after": after})}
        return await self._get(f"/v1/tokens?{urlencode(query)}", TokenPage)

    async def create_token(
        self, role: Role, *, queues: Sequence[str] | None = None, expires_in: timedelta | None = None
    ) -> MadeToken:
        """Make a token. queues: of those of the caller's own token; None: all of these.

        expires_in: None: it is good until it is revoked. Raises InvalidInput.
        """
        body = {"role": role, "queues": queues and list(queues), **_seconds("expiresInSeconds", expires_in)}
        return await self._make("/v1/tokens", body)

    async def rotate_token(
        self, token_id: str, *, overlap: timedelta = timedelta(hours=1), expires_in: timedelta | None = None
    ) -> MadeToken:
        """Make another token for the same role and queues. The old one is good until `overlap` is over.

        Raises Conflict when it is not in force any more, or was rotated before.
        """
        body = {**_seconds("overlapSeconds", overlap), **_seconds("expiresInSeconds", expires_in)}
        return await self._make(f"/v1/tokens/{quote(token_id, safe='')}/rotate", body)

    async def revoke_token(self, token_id: str) -> Token:
        """End a token, within 5 s. One that has ended stays as it is."""
        return decoded((await self._calls.call("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")).body, Token)

    async def _make(self, path: str, body: dict[str, Any]) -> MadeToken:
        return decoded((await self._calls.call("POST", path, body, retry_for_s=0)).body, MadeToken)


def _seconds(name: str, span: timedelta | None) -> dict[str, float]:
    return {} if span is None else {name: span.total_seconds()}
