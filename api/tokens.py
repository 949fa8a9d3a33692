"""Tokens of the caller's tenant, for its administrators. No token can be made, replaced or ended that may more than the
caller: it is of the same tenant, and of no queue that the caller may not use.

They are at home alone. Within api/auth.py: TTL_S every process goes by what has changed.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from api.auth import require_queue
from api.endpoints import Call, Created
from api.problems import Problem, not_found
from ledger.connection import Connection, Pool, session
from ledger.tokens import Identity, TokenView, create_token, page_tokens, read_token, revoke_token, rotate_token
from schemas import http_tokens as http
from schemas.http import NoBody

_TOKEN_ID = re.compile(r"[0-9a-f]{12}")  # schemas.http_tokens.TokenId


class Tokens:
    def __init__(self, home: Pool) -> None:
        self._home = home

    async def list(self, call: Call[http.TokenQuery]) -> http.TokenPage:
        """List tokens, without their secrets."""
        identity, limit = call.identity, call.body.limit
        async with session(self._home) as conn:
            found = await page_tokens(conn, identity.tenant, identity.queues, limit + 1, call.body.after)
        page = [_told(each) for each in found[:limit]]
        return http.TokenPage(tokens=page, next=page[-1].token_id if len(found) > limit else None)

    async def create(self, call: Call[http.NewToken]) -> Created[http.MadeToken]:
        """Make a token, which is told this once."""
        identity, body = call.identity, call.body
        for queue in body.queues or ():
            require_queue(identity, queue)
        queues = sorted({*body.queues}) if body.queues else identity.queues
        async with session(self._home) as conn:
            token = await create_token(
                conn, identity.tenant, body.role, queues, _span(body.expires_in_seconds), by=identity.token_id
            )
        return _made(token)

    async def rotate(self, call: Call[http.TokenRotation]) -> Created[http.MadeToken]:
        """Make another token for the same, and let the old one expire."""
        body, overlap = call.body, timedelta(seconds=call.body.overlap_seconds)
        async with session(self._home) as conn:
            old = await _named(conn, call)
            made = await rotate_token(
                conn, old.token_id, overlap, _span(body.expires_in_seconds), by=call.identity.token_id
            )
        if made is None:
            raise Problem(409, "the token is not in force any more, or was rotated before")
        return _made(made)

    async def revoke(self, call: Call[NoBody]) -> http.Token:
        """End a token, within seconds. One that has ended stays as it is."""
        async with session(self._home) as conn:
            token = await _named(conn, call)
            await revoke_token(conn, token.token_id, by=call.identity.token_id)
            return _told(await read_token(conn, token.token_id) or token)


async def _named(conn: Connection, call: Call[Any]) -> TokenView:
    """The token that the path names. Raises Problem 404, or 403 when it may what the caller may not."""
    token_id = call.path["id"]
    found = await read_token(conn, token_id) if _TOKEN_ID.fullmatch(token_id) else None
    if found is None or found.tenant != call.identity.tenant:
        raise not_found("token")
    _require_no_more(call.identity, found)
    return found


def _require_no_more(identity: Identity, token: TokenView) -> None:
    if identity.queues is None:
        return
    if token.queues is None:
        raise Problem(403, "the token is good for all queues, the caller's is scoped to some", field="queue")
    for queue in token.queues:
        require_queue(identity, queue)


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _made(token: str) -> Created[http.MadeToken]:
    return Created(http.MadeToken(token_id=token.split("_")[1], token=token))


def _told(view: TokenView) -> http.Token:
    fields = view._asdict()
    del fields["tenant"]
    return http.Token(**fields)
