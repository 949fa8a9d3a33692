"""Bearer tokens: `fp_<id>_<secret>`, stored hashed, scoped to a tenant, a role and maybe some queues.

 in force --expires_at is reached--> expired    \\
    |                                            > forgotten after FORGOTTEN_AFTER
    +-------------revoke-----------> revoked    /

A rotation makes another token for the same, and lets the old one expire. All of it goes by the ledger's clock.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from ledger.audits import note
from ledger.connection import Connection

Role = Literal["producer", "worker", "operator", "admin"]
State = Literal["in force", "expired", "revoked"]

FORGOTTEN_AFTER = timedelta(days=90)


class Identity(NamedTuple):
    """Whom a token speaks for. queues: None for every queue of the tenant."""

    token_id: str
    tenant: str
    role: Role
    queues: list[str] | None


class FoundToken(NamedTuple):
    """left_s: for how long it is in force unless it is revoked; None: for ever."""

    identity: Identity
    left_s: float | None


class TokenView(NamedTuple):
    """What is told of a token: all but its secret. replaced_by: the id of the token that a rotation made of it.

    last_used_at: about, see `note_uses`; None: never, as far as anybody has noted.
    """

    token_id: str
    tenant: str
    role: Role
    queues: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    replaced_by: str | None
    last_used_at: datetime | None
    state: State


def token_hash(token: str) -> bytes:
    """What the ledger keeps of a token. The secret has 256 random bits, so one plain hash is enough."""
    return hashlib.sha256(token.encode()).digest()


_SCOPE = "concat_ws(' ', role, 'of', coalesce(array_to_string(queues, ','), 'all queues'), 'until ' || expires_at)"
CREATE_TOKEN = f"""
WITH done AS (
    INSERT INTO tokens (token_id, token_hash, tenant, role, queues, expires_at)
    VALUES (%(token_id)s, %(token_hash)s, %(tenant)s, %(role)s, %(queues)s, now() + %(expires_in)s::interval)
    RETURNING token_id, tenant, role, queues, expires_at
)
{note("done", action="'token_created'", subject="token_id", detail=_SCOPE)}
"""


async def create_token(
    conn: Connection,
    tenant: str,
    role: Role,
    queues: list[str] | None = None,
    expires_in: timedelta | None = None,
    *,
    by: str | None = None,
) -> str:
    """A new token, shown this once. expires_in: from now on; None: it is good until it is revoked.

    by: who asked for it, a token's id; None, here and below: whoever has the ledger's password.
    """
    token_id, token = _new_token()
    asked = {
        "token_id": token_id,
        "token_hash": token_hash(token),
        "tenant": tenant,
        "role": role,
        "queues": queues,
        "expires_in": expires_in,
        "by": by,
    }
    await conn.execute(CREATE_TOKEN, asked)
    return token


# One statement: there is no moment in which the one has ended and the other is not there yet.
ROTATE_TOKEN = f"""
WITH old AS (
    UPDATE tokens SET replaced_by = %(token_id)s, expires_at = least(expires_at, now() + %(overlap)s::interval)
    WHERE token_id = %(old_id)s AND revoked_at IS NULL AND replaced_by IS NULL
      AND (expires_at IS NULL OR expires_at > now())
    RETURNING token_id, tenant, role, queues, replaced_by
), new AS (
    INSERT INTO tokens (token_id, token_hash, tenant, role, queues, expires_at)
    SELECT %(token_id)s, %(token_hash)s, tenant, role, queues, now() + %(expires_in)s::interval FROM old
), noted AS ({note("old", action="'token_rotated'", subject="token_id", detail="'to ' || replaced_by")})
SELECT token_id FROM old
"""


async def rotate_token(
    conn: Connection,
    token_id: str,
    overlap: timedelta,
    expires_in: timedelta | None = None,
    *,
    by: str | None = None,
) -> str | None:
    """A new token for the same tenant, role and queues; the old one expires when `overlap` is over, if not before.

    expires_in: of the new one, as for `create_token`. None when there is no such token in force, or it was rotated.
    """
    new_id, token = _new_token()
    asked = {
        "old_id": token_id,
        "token_id": new_id,
        "token_hash": token_hash(token),
        "overlap": overlap,
        "expires_in": expires_in,
        "by": by,
    }
    return token if (await conn.execute(ROTATE_TOKEN, asked)).rowcount == 1 else None


def _new_token() -> tuple[str, str]:
    token_id = secrets.token_hex(6)
    return token_id, f"fp_{token_id}_{secrets.token_urlsafe(32)}"


FIND_TOKEN = """
SELECT extract(epoch FROM expires_at - now())::float8, token_id, tenant, role, queues FROM tokens
WHERE token_hash = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""


async def find_token(conn: Connection, token: str) -> FoundToken | None:
    """Whom a token speaks for; None when it is unknown, expired or revoked."""
    row = await (await conn.execute(FIND_TOKEN, (token_hash(token),))).fetchone()
    return FoundToken(Identity(*row[1:]), row[0]) if row else None


REVOKE_TOKEN = f"""
WITH done AS (
    UPDATE tokens SET revoked_at = now()
    WHERE token_id = %(token_id)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
    RETURNING token_id, tenant
), noted AS ({note("done", action="'token_revoked'", subject="token_id")})
SELECT token_id FROM done
"""


async def revoke_token(conn: Connection, token_id: str, *, by: str | None = None) -> bool:
    """End a token. False when there is no such token in force."""
    return (await conn.execute(REVOKE_TOKEN, {"token_id": token_id, "by": by})).rowcount == 1


_VIEW = """
SELECT token_id, tenant, role, queues, created_at, expires_at, revoked_at, replaced_by, last_used_at,
       CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= now() THEN 'expired' ELSE 'in force' END
FROM tokens
"""
READ_TOKEN = f"{_VIEW} WHERE token_id = %s"


async def read_token(conn: Connection, token_id: str) -> TokenView | None:
    """None when there is none, or it is forgotten."""
    row = await (await conn.execute(READ_TOKEN, (token_id,))).fetchone()
    return TokenView(*row) if row else None


PAGE_TOKENS = f"""{_VIEW}
WHERE tenant = %(tenant)s AND (%(queues)s::text[] IS NULL OR queues <@ %(queues)s::text[])
  AND (%(after)s::text IS NULL OR token_id > %(after)s)
ORDER BY token_id LIMIT %(limit)s
"""


async def page_tokens(
    conn: Connection, tenant: str, queues: Collection[str] | None, limit: int, after: str | None = None
) -> list[TokenView]:
    """A tenant's tokens in the order of their ids. queues: those good for none but these; None: any. after: an id."""
    asked = {"tenant": tenant, "queues": queues and list(queues), "limit": limit, "after": after}
    return [TokenView(*row) for row in await (await conn.execute(PAGE_TOKENS, asked)).fetchall()]


LIST_TOKENS = f"""{_VIEW}
WHERE %(tenant)s::text IS NULL OR tenant = %(tenant)s
ORDER BY tenant, created_at, token_id
"""


async def list_tokens(conn: Connection, tenant: str | None = None) -> list[TokenView]:
    """Tokens by tenant and age, of one tenant or of all, with those that have ended and are not forgotten yet."""
    return [TokenView(*row) for row in await (await conn.execute(LIST_TOKENS, {"tenant": tenant})).fetchall()]


# Several processes note the same token: what one has just noted the others leave alone.
NOTE_USES = """
UPDATE tokens SET last_used_at = now()
WHERE token_id = ANY (%s) AND (last_used_at IS NULL OR last_used_at < now() - interval '30 seconds')
"""


async def note_uses(conn: Connection, token_ids: Collection[str]) -> None:
    """They were used within the last minute or so."""
    await conn.execute(NOTE_USES, (list(token_ids),))


FORGET_TOKENS = "DELETE FROM tokens WHERE least(revoked_at, expires_at) < now() - %s::interval"


async def forget_tokens(conn: Connection) -> None:
    """Drop those that ended so long ago that nobody asks any more whose they were."""
    await conn.execute(FORGET_TOKENS, (FORGOTTEN_AFTER,))
