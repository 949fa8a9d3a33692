"""Who calls: bearer tokens, looked up in the ledger by their hash and remembered for a few seconds.

An issuer's are judged by their signature and claims instead, and remembered in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection

from api.issuer import Issuer
from api.problems import Problem
from ledger.connection import Pool, ledger_now, session
from ledger.tokens import FoundToken, Identity, Role, find_token, token_hash

TTL_S = 5.0  # a revoked token works at most this long
MOST_KNOWN = 10_000
MOST_UNKNOWN = 1_000

Entry = tuple[float, Identity | None]  # until when, by the process's clock, it is believed
Remembered = OrderedDict[bytes, Entry]


class Authenticator:
    """Tells whom a token speaks for. Tokens are remembered by their hash, known and unknown ones apart, so that a
    flood of wrong tokens cannot push out right ones.

    on_use: gets the id of one of the ledger's tokens when it is looked up: every ttl_s while it is in use.
    """

    def __init__(
        self,
        pool: Pool,
        issuer: Issuer | None = None,
        *,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
        on_use: Callable[[str], object] = lambda _token_id: None,
    ) -> None:
        self._pool = pool
        self._on_use = on_use
        self._issuer = issuer
        self._ttl_s = ttl_s
        self._clock = clock
        self._known: Remembered = OrderedDict()
        self._unknown: Remembered = OrderedDict()
        self._looking: dict[bytes, asyncio.Task[Entry]] = {}

    async def identify(self, authorization: bytes | None) -> Identity:
        """The identity behind an Authorization header. Raises Problem 401, or LedgerUnavailable.

        Every token costs one hash and, at most every few seconds, one look-up by it: nothing in the time it takes
        depends on how much of a secret was right.
        """
        token = _bearer(authorization)
        if token is None:
            raise _unauthorized("send Authorization: Bearer <token>")
        digest = token_hash(token)
        found = self._known.get(digest) or self._unknown.get(digest)
        if found is None or found[0] <= self._clock():
            found = await self._look(digest, token)
        if found[1] is None:
            raise _unauthorized("the token is unknown, expired or revoked")
        return found[1]

    async def _look(self, digest: bytes, token: str) -> Entry:
        """Ask the ledger, once for all who come with the token meanwhile: thousands may when a worker's time is up."""
        if (looking := self._looking.get(digest)) is None:
            looking = self._looking[digest] = asyncio.create_task(self._find(digest, token))
            looking.add_done_callback(lambda _: self._looking.pop(digest))
        return await asyncio.shield(looking)

    async def _find(self, digest: bytes, token: str) -> Entry:
        asked = self._clock()  # before it is said for how long the token is in force, so that it ends no later
        found = await self._judge(token)
        if found is None:
            return self._remember(digest, (self._clock() + self._ttl_s, None))
        left_s = self._ttl_s if found.left_s is None else min(found.left_s, self._ttl_s)
        return self._remember(digest, (asked + left_s, found.identity))

    async def _judge(self, token: str) -> FoundToken | None:
        if self._issuer is None or not self._issuer.has_made(token):
            async with session(self._pool) as conn:
                found = await find_token(conn, token)
            if found is not None:
                self._on_use(found.identity.token_id)
            return found
        async with session(self._pool) as conn:
            now = await ledger_now(conn)
        return await self._issuer.find(token, now.timestamp())

    def _remember(self, digest: bytes, entry: Entry) -> Entry:
        self._known.pop(digest, None)
        self._unknown.pop(digest, None)
        memory, most = (self._known, MOST_KNOWN) if entry[1] else (self._unknown, MOST_UNKNOWN)
        memory[digest] = entry
        if len(memory) > most:
            memory.popitem(last=False)
        return entry


def require_role(identity: Identity, roles: Collection[Role]) -> None:
    """Raises Problem 403 unless the token has one of the roles; admin has them all."""
    if identity.role not in roles and identity.role != "admin":
        raise Problem(403, f"a {identity.role} token may not do this; it takes {' or '.join(sorted(roles))}")


def require_queue(identity: Identity, queue: str) -> None:
    """Raises Problem 403 unless the token may use the queue."""
    if identity.queues is not None and queue not in identity.queues:
        raise Problem(403, f"the token is not scoped to queue {queue}", field="queue")


def _bearer(authorization: bytes | None) -> str | None:
    scheme, _, token = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    return token.strip().decode("latin-1") or None


def _unauthorized(detail: str) -> Problem:
    return Problem(401, detail, headers=[(b"www-authenticate", b"Bearer")])
