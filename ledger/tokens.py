"""Bearer tokens: `fp_<id>_<secret>`, stored hashed, scoped to a tenant, a role and maybe some queues."""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal, NamedTuple

from ledger.connection import Connection

Role = Literal["producer", "worker", "operator", "admin"]


class Identity(NamedTuple):
    """Whom a token speaks for. queues: None for every queue of the tenant."""

    token_id: str
    tenant: str
    role: Role
    queues: list[str] | None


def token_hash(token: str) -> bytes:
    """What the ledger keeps of a token. The secret has 256 random bits, so one plain hash is enough."""
    return hashlib.sha256(token.encode()).digest()


CREATE_TOKEN = "INSERT INTO tokens (token_id, token_hash, tenant, role, queues) VALUES (%s, %s, %s, %s, %s)"


async def create_token(conn: Connection, tenant: str, role: Role, queues: list[str] | None = None) -> str:
    """A new token, shown this once."""
    token_id = secrets.token_hex(6)
    token = f"fp_{token_id}_{secrets.token_urlsafe(32)}"
    await conn.execute(CREATE_TOKEN, (token_id, token_hash(token), tenant, role, queues))
    return token


FIND_TOKEN = "SELECT token_id, tenant, role, queues FROM tokens WHERE token_hash = %s AND revoked_at IS NULL"


async def find_token(conn: Connection, token: str) -> Identity | None:
    """Whom a token speaks for; None when it is unknown or revoked."""
    row = await (await conn.execute(FIND_TOKEN, (token_hash(token),))).fetchone()
    return Identity(*row) if row else None


REVOKE_TOKEN = "UPDATE tokens SET revoked_at = now() WHERE token_id = %s AND revoked_at IS NULL"


async def revoke_token(conn: Connection, token_id: str) -> bool:
    """End a token. False when there is no such token in force."""
    return (await conn.execute(REVOKE_TOKEN, (token_id,))).rowcount == 1
