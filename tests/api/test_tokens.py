"""Tokens by HTTP: made, rotated, listed and ended by an administrator of their tenant, never beyond his own scope."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from api.app import Api
from api.token_uses import TokenUses
from ledger.audits import read_audits
from ledger.connection import Pool, session
from ledger.tokens import Role, find_token, list_tokens
from tests.api.conftest import Caller, Callers

TOKENS = "/v1/tokens"


@pytest.fixture
async def admin(callers: Callers) -> Caller:
    return await callers("admin")


@pytest.fixture
async def mail_admin(callers: Callers) -> Caller:
    """Who may do everything in one queue."""
    return await callers("admin", queues=["mail"])


async def made(caller: Caller, **fields: Any) -> dict[str, str]:
    response = await caller.post(TOKENS, {"role": "worker", **fields})
    assert response.status_code == 201, response.text
    answer: dict[str, str] = response.json()
    return answer


async def listed(caller: Caller) -> dict[str, dict[str, Any]]:
    return {each["tokenId"]: each for each in (await caller.get(TOKENS)).json()["tokens"]}


@pytest.mark.parametrize("role", get_args(Role))
async def test_a_token_is_told_once_and_works_at_once(admin: Caller, callers: Callers, role: Role) -> None:
    token = await made(admin, role=role, queues=["sms", "mail", "sms"], expiresInSeconds=60)
    assert token["token"].startswith(f"fp_{token['tokenId']}_")
    whoami = (await callers.with_token(token["token"]).get("/v1/whoami")).json()
    assert whoami == {"tenant": "acme", "role": role, "queues": ["mail", "sms"]}
    shown = (await listed(admin))[token["tokenId"]]
    assert (shown["role"], shown["queues"], shown["state"]) == (role, ["mail", "sms"], "in force")
    assert shown["expiresAt"] is not None
    assert token["token"] not in (await admin.get(TOKENS)).text


async def test_a_rotation_makes_another_and_lets_the_old_one_expire(
    admin: Caller, callers: Callers, ledger_pool: Pool
) -> None:
    old = await made(admin, queues=["mail"])
    response = await admin.post(f"{TOKENS}/{old['tokenId']}/rotate", {"overlapSeconds": 0})
    assert response.status_code == 201
    new = response.json()
    async with session(ledger_pool) as conn:
        assert await find_token(conn, old["token"]) is None
    assert (await callers.with_token(new["token"]).get("/v1/whoami")).json()["queues"] == ["mail"]
    shown = (await listed(admin))[old["tokenId"]]
    assert (shown["state"], shown["replacedBy"]) == ("expired", new["tokenId"])
    again = await admin.post(f"{TOKENS}/{old['tokenId']}/rotate")
    assert (again.status_code, "rotated before" in again.json()["detail"]) == (409, True)


async def test_a_token_is_revoked_and_that_may_be_said_again(admin: Caller, ledger_pool: Pool) -> None:
    token = await made(admin)
    first, again = [await admin.delete(f"{TOKENS}/{token['tokenId']}") for _ in range(2)]
    assert (first.status_code, first.json()["state"]) == (200, "revoked")
    assert again.json() == first.json()
    async with session(ledger_pool) as conn:
        assert await find_token(conn, token["token"]) is None


async def test_an_administrator_of_some_queues_makes_tokens_for_no_others(mail_admin: Caller) -> None:
    refused = await mail_admin.post(TOKENS, {"role": "worker", "queues": ["mail", "sms"]})
    assert (refused.status_code, refused.json()["field"]) == (403, "queue")
    token = await made(mail_admin)
    assert (await listed(mail_admin))[token["tokenId"]]["queues"] == ["mail"]


async def test_an_administrator_of_some_queues_neither_sees_nor_replaces_nor_ends_what_may_more(
    admin: Caller, mail_admin: Caller
) -> None:
    for token in (await made(admin), await made(admin, queues=["mail", "sms"])):
        assert token["tokenId"] not in await listed(mail_admin)
        path = f"{TOKENS}/{token['tokenId']}"
        assert (await mail_admin.post(f"{path}/rotate")).status_code == 403
        assert (await mail_admin.delete(path)).status_code == 403
        assert (await listed(admin))[token["tokenId"]]["state"] == "in force"


async def test_another_tenant_s_token_is_as_one_that_never_was(admin: Caller, callers: Callers) -> None:
    theirs = (await callers.token("worker", tenant="globex")).split("_")[1]
    assert theirs not in await listed(admin)
    for token_id in (theirs, "0" * 12, "jwt:ann", "%00"):
        for response in (
            await admin.post(f"{TOKENS}/{token_id}/rotate"),
            await admin.delete(f"{TOKENS}/{token_id}"),
        ):
            assert (response.status_code, response.json()["detail"]) == (404, "no such token")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "role"),
        ({"role": "root"}, "role"),
        ({"role": "worker", "queues": []}, "queues"),
        ({"role": "worker", "queues": ["no queue"]}, "queues.0"),
        ({"role": "worker", "expiresInSeconds": -1}, "expiresInSeconds"),
        ({"role": "worker", "tenant": "globex"}, "tenant"),
    ],
)
async def test_a_token_that_cannot_be_is_refused_by_its_field(admin: Caller, body: dict[str, Any], field: str) -> None:
    response = await admin.post(TOKENS, body)
    assert (response.status_code, response.json()["field"]) == (422, field)


async def test_tokens_are_listed_page_by_page(admin: Caller) -> None:
    for _ in range(3):
        await made(admin)
    found, after = [], ""
    while after is not None:
        page = (await admin.get(f"{TOKENS}?limit=2{after and f'&after={after}'}")).json()
        assert len(page["tokens"]) <= 2
        found += [each["tokenId"] for each in page["tokens"]]
        after = page["next"]
    assert found == sorted(await listed(admin))


async def test_what_an_administrator_does_to_tokens_is_noted_with_his_name(admin: Caller, ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        [actor] = [each.token_id for each in await list_tokens(conn)]
    old = (await made(admin))["tokenId"]
    new = (await admin.post(f"{TOKENS}/{old}/rotate")).json()["tokenId"]
    await admin.delete(f"{TOKENS}/{new}")
    async with session(ledger_pool) as conn:
        told = [(row.actors, row.actions, row.subjects) for row in await read_audits(conn, 10)]
    assert told[1:] == [
        ([actor], ["token_created"], [old]),
        ([actor], ["token_rotated"], [old]),
        ([actor], ["token_revoked"], [new]),
    ]


async def test_when_a_token_was_last_used_is_noted_beside_the_calls(api: Api, admin: Caller, callers: Callers) -> None:
    token = await made(admin)
    await callers.with_token(token["token"]).get("/v1/whoami")
    assert (await listed(admin))[token["tokenId"]]["lastUsedAt"] is None
    await api.token_uses.note()
    assert (await listed(admin))[token["tokenId"]]["lastUsedAt"] is not None


async def test_a_token_s_use_is_written_once_however_many_processes_note_it(admin: Caller, ledger_pool: Pool) -> None:
    token_id, told = (await made(admin))["tokenId"], []
    for _ in range(2):
        uses = TokenUses(ledger_pool)
        uses.add(token_id)
        await uses.note()
        told.append((await listed(admin))[token_id]["lastUsedAt"])
    assert told[0] is not None
    assert told[0] == told[1]
