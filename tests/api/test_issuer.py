"""An issuer's tokens are believed for what its keys have signed, and for whom and as long as they say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from api.auth import Authenticator
from api.issuer import ASK_AGAIN_S, KEYS_KEPT_S, Issuer, IssuerSettings
from api.problems import Problem
from ledger.connection import Pool
from ledger.tokens import FoundToken, Identity

NOW_S = 1_800_000_000.0
RSA, EC = RSAKey.generate_key(2048, {"kid": "one"}), ECKey.generate_key("P-256", {"kid": "two"})
SCOPE = {"tenant": "acme", "role": "worker", "queues": ["mail"]}
CLAIMS: dict[str, Any] = {
    "iss": "https://login.example",
    "aud": "fencepost",
    "sub": "ci-runner",
    "exp": NOW_S + 600,
    "fencepost": SCOPE,
}
BELIEVED = Identity("jwt:ci-runner", "acme", "worker", ["mail"])


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def write_keys(file: Path, *keys: RSAKey | ECKey) -> None:
    put(file, json.dumps(KeySet(list(keys)).as_dict(private=False)))


def put(file: Path, text: str) -> None:
    file.write_text(text)


def signed(key: Any = RSA, alg: str = "RS256", **claims: Any) -> str:
    told = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    header = {"alg": alg, "kid": key.kid}
    return jwt.encode(header, told, key, algorithms=[alg])


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    write_keys(file, RSA, EC)
    return file


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(keys: Path, clock: Clock) -> Issuer:
    return Issuer(IssuerSettings(CLAIMS["iss"], "fencepost", str(keys)), clock=clock)


@pytest.mark.parametrize(("key", "alg"), [(RSA, "RS256"), (EC, "ES256")])
async def test_what_the_issuer_has_signed_is_believed_until_it_expires(issuer: Issuer, key: Any, alg: str) -> None:
    assert await issuer.find(signed(key, alg), NOW_S) == FoundToken(BELIEVED, 600.0)
    assert await issuer.find(signed(key, alg), NOW_S + 600) is None


async def test_an_audience_may_be_one_of_several_and_queues_all(issuer: Issuer) -> None:
    found = await issuer.find(signed(aud=["x", "fencepost"], fencepost={"tenant": "acme", "role": "admin"}), NOW_S)
    assert found is not None
    assert found.identity == Identity("jwt:ci-runner", "acme", "admin", None)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://login.example.evil"},
        {"aud": "another"},
        {"aud": None},
        {"exp": None},
        {"exp": "never"},
        {"nbf": NOW_S + 1},
        {"sub": None},
        {"sub": "two words"},
        {"fencepost": None},
        {"fencepost": {"tenant": "acme"}},
        {"fencepost": SCOPE | {"role": "root"}},
        {"fencepost": SCOPE | {"tenant": "a b"}},
        {"fencepost": {"tenant": "acme", "role": "worker", "queue": ["mail"]}},
        {"fencepost": SCOPE | {"queues": "mail"}},
    ],
    ids=str,
)
async def test_what_does_not_say_all_that_it_must_is_not_believed(issuer: Issuer, claims: dict[str, Any]) -> None:
    assert await issuer.find(signed(**claims), NOW_S) is None


async def test_a_signature_by_another_key_or_another_algorithm_is_not_believed(issuer: Issuer) -> None:
    head, body, signature = signed().split(".")
    shared = OctKey.generate_key(256, {"kid": "one"})
    for forged in (
        signed(RSAKey.generate_key(2048, {"kid": "one"})),
        signed(shared, "HS256"),
        signed(RSA, "RS512"),
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{head}.{signed(sub='another').split('.')[1]}.{signature}",
        "eyJhbGciOiJub25lIn0." + body + ".AA",
        "a.b.c",
        "e30.e30.e30",
    ):
        assert await issuer.find(forged, NOW_S) is None, forged


async def test_keys_are_read_where_a_url_says_and_an_error_there_is_no_key(keys: Path) -> None:
    class Answers(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), partial(Answers, directory=str(keys.parent))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        there, nowhere = (
            Issuer(IssuerSettings(CLAIMS["iss"], "fencepost", f"{url}/{name}")) for name in (keys.name, "nowhere")
        )
        assert await there.find(signed(), NOW_S) == FoundToken(BELIEVED, 600.0)
        assert await nowhere.find(signed(), NOW_S) is None
        server.shutdown()


async def test_a_new_key_is_heard_of_when_it_is_first_used_and_an_old_one_forgotten_within_minutes(
    issuer: Issuer, keys: Path, clock: Clock
) -> None:
    new = RSAKey.generate_key(2048, {"kid": "three"})
    assert await issuer.find(signed(), NOW_S)
    write_keys(keys, new)
    clock.now += ASK_AGAIN_S - 1  # whoever invents keys does not have the issuer asked each time
    assert await issuer.find(signed(new), NOW_S) is None
    clock.now += 1
    assert await issuer.find(signed(new), NOW_S)
    write_keys(keys, EC)
    assert await issuer.find(signed(new), NOW_S)
    clock.now += KEYS_KEPT_S
    assert await issuer.find(signed(new), NOW_S) is None


async def test_while_the_issuer_is_away_its_known_keys_stand_and_unknown_ones_are_not_believed(
    issuer: Issuer, keys: Path, clock: Clock
) -> None:
    put(keys, "<html>502</html>")
    assert await issuer.find(signed(), NOW_S) is None
    write_keys(keys, RSA)
    assert await issuer.find(signed(), NOW_S) is None
    clock.now += ASK_AGAIN_S
    assert await issuer.find(signed(), NOW_S)
    put(keys, "")
    clock.now += KEYS_KEPT_S
    assert await issuer.find(signed(), NOW_S)


async def test_a_signature_is_verified_once_in_a_while_and_expiry_is_by_the_ledgers_clock(
    issuer: Issuer, ledger_pool: Pool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    verify = Issuer._verified

    def count(token: str, keys: KeySet) -> Any:
        verified.append(token)
        return verify(token, keys)

    monkeypatch.setattr(Issuer, "_verified", staticmethod(count))
    authenticator = Authenticator(ledger_pool, issuer, clock=clock)
    in_a_minute = (datetime.now(UTC) + timedelta(minutes=1)).timestamp()
    header = f"Bearer {signed(exp=in_a_minute)}".encode()
    for _ in range(100):
        assert await authenticator.identify(header) == BELIEVED
    assert len(verified) == 1
    clock.now += 5.0
    assert await authenticator.identify(header) == BELIEVED
    assert len(verified) == 2
    with pytest.raises(Problem, match="expired"):
        await authenticator.identify(f"Bearer {signed(exp=in_a_minute - 61)}".encode())


async def test_without_an_issuer_its_tokens_are_unknown(ledger_pool: Pool) -> None:
    with pytest.raises(Problem, match="unknown"):
        await Authenticator(ledger_pool).identify(f"Bearer {signed()}".encode())
