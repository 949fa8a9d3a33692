"""Tokens of an issuer (JWT), beside those of the ledger: whom they speak for is told by their claims, once its key has
signed them.

    {"iss": "https://login.example", "aud": "fencepost", "sub": "ci-runner", "exp": 1796083200,
     "fencepost": {"tenant": "acme", "role": "producer", "queues": ["mail"]}}
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
from joserfc import jws
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from msgspec import Meta, Struct

from ledger.tokens import FoundToken, Identity, Role
from schemas.commands import Name

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "ES256")
KEYS_KEPT_S = 300.0
ASK_AGAIN_S = 10.0  # for a key that is not among those that are known, or after nobody answered
KEYS_WITHIN_S = 5.0
_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)  # ours have no dots


@dataclass(frozen=True, slots=True)
class IssuerSettings:
    """Whose tokens are believed, and for whom they must be made.

    keys: where the issuer's keys are, as a JWK Set: a URL, or a file. claim: the one that has tenant, role and queues.
    """

    issuer: str
    audience: str
    keys: str
    claim: str = "fencepost"


class _Scope(Struct, forbid_unknown_fields=True, frozen=True):
    """A field that nobody knows is an error: a misspelt `queues` must not open all of them."""

    tenant: Name
    role: Role
    queues: list[Name] | None = None


class _Claims(Struct, frozen=True):
    iss: str
    aud: str | list[str]
    sub: Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,100}\Z")]
    exp: float
    nbf: float = 0.0


class Issuer:
    """Knows the issuer's keys and judges its tokens. Belongs to one event loop."""

    def __init__(self, settings: IssuerSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._keys: KeySet | None = None
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    @staticmethod
    def has_made(token: str) -> bool:
        """Whether it looks like a token of an issuer, and none of ours."""
        return _JWT.fullmatch(token) is not None

    async def find(self, token: str, now_s: float) -> FoundToken | None:
        """Whom a token speaks for; None, and a line in the log, for one that is not believed.

        now_s: since 1970, by the ledger's clock. A signature takes a tenth of a millisecond: the caller remembers.
        """
        try:
            return self._judge(await self._signed(token), now_s)
        except (JoseError, msgspec.ValidationError, _Refused, ValueError) as error:
            log.info("a token of %s is not believed: %s", self._settings.issuer, error)
            return None

    def _judge(self, claims: Any, now_s: float) -> FoundToken:
        known = msgspec.convert(claims, _Claims)
        if known.iss != self._settings.issuer:
            raise _Refused(f"it is of {known.iss}")
        if self._settings.audience not in ([known.aud] if isinstance(known.aud, str) else known.aud):
            raise _Refused(f"it is for {known.aud}")
        if not known.nbf <= now_s < known.exp:
            raise _Refused("it is not in force now")
        scope = msgspec.convert(claims.get(self._settings.claim), _Scope)
        identity = Identity(f"jwt:{known.sub}", scope.tenant, scope.role, scope.queues)
        return FoundToken(identity, known.exp - now_s)

    async def _signed(self, token: str) -> Any:
        """The claims, which one of the issuer's keys has signed. Raises JoseError, ValueError."""
        try:
            return self._verified(token, await self._known_keys(KEYS_KEPT_S))
        except InvalidKeyIdError:  # it may be new
            return self._verified(token, await self._known_keys(ASK_AGAIN_S))

    @staticmethod
    def _verified(token: str, keys: KeySet) -> Any:
        claims = json.loads(jws.deserialize_compact(token, keys, algorithms=ALGORITHMS).payload)
        if not isinstance(claims, dict):
            raise _Refused("its claims are no object")
        return claims

    async def _known_keys(self, no_older_than_s: float) -> KeySet:
        """Raises _Refused while nobody has ever told them."""
        async with self._asking:
            if self._clock() - self._asked_at >= no_older_than_s or (
                self._keys is None and self._clock() - self._asked_at >= ASK_AGAIN_S
            ):
                self._asked_at = self._clock()
                await self._ask()
        if self._keys is None:
            raise _Refused("the issuer's keys are not to be had")
        return self._keys

    async def _ask(self) -> None:
        """Those that are known stand when it fails."""
        try:
            self._keys = KeySet.import_key_set(json.loads(await self._read()))
        except (OSError, httpx.HTTPError, httpx.InvalidURL, JoseError, ValueError, TypeError, KeyError) as error:
            log.warning("the keys of %s cannot be had from %s: %s", self._settings.issuer, self._settings.keys, error)

    async def _read(self) -> bytes:
        where = self._settings.keys
        if not where.startswith(("https://", "http://")):
            return await asyncio.to_thread(Path(where).read_bytes)
        async with httpx.AsyncClient(timeout=KEYS_WITHIN_S) as client:
            return (await client.get(where)).raise_for_status().content


class _Refused(Exception):
    """Why a token is not believed."""
