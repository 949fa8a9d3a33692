"""Every route × every role × own and other tenants × own and other queues, as /openapi.json tells the routes.

Nothing here names a route: who may what is the document's `x-roles` and `x-queue-scope`, what a call names is its
parameters and body. A route that is added is in the matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args
from uuid import UUID, uuid4

import httpx
import pytest

from api.app import Api, ApiSettings
from api.openapi import describe
from ledger.connection import Pool, session
from ledger.runs import read_run
from ledger.tokens import Role
from tests.api.conftest import Callers, Past, with_history
from tests.api.described import Json, Operation, operations
from tests.api.owner import Owner

OURS, THEIRS = "acme", "umbrella"
MINE, NOT_MINE = "mail", "billing"
QUARTERS = [(tenant, queue) for tenant in (OURS, THEIRS) for queue in (MINE, NOT_MINE)]


@dataclass(frozen=True)
class Target:
    """What a call is about: a job, its run, and a token for the queue of a tenant that they are in."""

    tenant: str
    queue: str
    run_id: str
    job_id: str
    lease_token: int
    token_id: str

    def call(self, operation: Operation, client: httpx.AsyncClient, *, names_it: bool = True) -> httpx.Request:
        """The operation about this, with the least that it takes. names_it: also where it need not."""
        known: dict[str, Any] = {
            "runId": self.run_id,
            "jobId": self.job_id,
            "queue": self.queue,
            "queues": [self.queue],
            "leaseToken": self.lease_token,
            "declaredSet": "set",
            "waitSeconds": 0,
        }
        ids = {"jobs": self.job_id, "runs": self.run_id, "tokens": self.token_id}
        known["id"] = next((each for kind, each in ids.items() if f"/{kind}/" in operation.path), None)
        path = operation.path.format(**{each["name"]: known[each["name"]] for each in operation.parameters("path")})
        known = known if names_it else {}
        asked = {
            each["name"]: operation.value(each["schema"], known, each["name"])
            for each in operation.parameters("query")
            if each["required"] or each["name"] in known
        }
        body = operation.body()
        content = None if body is None else operation.value(body, known)
        return client.build_request(operation.method, path, params=asked, json=content)


@pytest.fixture
def settings(settings: ApiSettings, past: Past) -> ApiSettings:
    """Nobody applies commands here: that they were let through is all that is asked."""
    settings = with_history(settings, past)
    return dataclasses.replace(settings, applied_within_s=0.01, history_catches_up_s=0.0)


@pytest.fixture
def document(api: Api) -> Json:
    return describe(api.routes())


class World:
    """Runs of both tenants in both queues, for calls of our tokens."""

    def __init__(self, owner: Owner, callers: Callers, pool: Pool) -> None:
        self._owner, self._callers, self._pool = owner, callers, pool

    async def target(self, tenant: str, queue: str) -> Target:
        """A run of its own, leased."""
        [run_id] = await self._owner.make_due(tenant=tenant, queue=queue)
        worker = await self._callers("worker", tenant)
        leased = {run["runId"]: run for run in await worker.lease(queue, max=100, waitSeconds=5)}
        run = leased[str(run_id)]
        token = await self._callers.token("worker", tenant, [queue])
        return Target(tenant, queue, run["runId"], run["jobId"], run["leaseToken"], token.split("_")[1])

    async def dead(self, tenant: str, queue: str) -> Target:
        """A run that has failed for good."""
        target = await self.target(tenant, queue)
        worker = await self._callers("worker", tenant)
        end = {"leaseToken": target.lease_token, "error": "broken", "permanent": True}
        assert (await worker.post(f"/v1/runs/{target.run_id}/fail", end)).json()["outcome"] == "dead"
        return target

    async def client(self, role: Role, queues: list[str] | None) -> httpx.AsyncClient:
        return (await self._callers(role, OURS, queues)).http


@pytest.fixture
def world(owner: Owner, callers: Callers, ledger_pool: Pool) -> World:
    return World(owner, callers, ledger_pool)


def refusal(operation: Operation, role: Role, target: Target, *, scoped: bool) -> int | None:
    """The status that the document promises to a call; None when it is let through. scoped: the token is, to MINE."""
    assert operation.roles is not None
    if role not in operation.roles:
        return 403
    if operation.names_object and target.tenant != OURS:
        return 404
    if scoped and operation.queue_scope == "whole":
        return 403
    names_it = operation.names_object or operation.names_queue
    return 403 if scoped and names_it and target.queue != MINE else None


def fault(operation: Operation, response: httpx.Response, status: int | None) -> str | None:
    """What is wrong with an answer, if anything is. status: as `refusal` tells it."""
    if status is not None and response.status_code != status:
        return f"{response.status_code} instead of {status}: {response.text}"
    if status is None and response.status_code in (401, 403, 404):
        return f"was not let through: {response.text}"
    return operation.mismatch(response)


def leak(request: httpx.Request, response: httpx.Response, hidden: Sequence[Target]) -> str | None:
    """What an answer tells of others beyond what its caller has named."""
    named = f"{request.url} {request.content.decode()}"
    ids = (each for target in hidden for each in (target.run_id, target.job_id, target.token_id))
    return next((f"tells of {each}" for each in ids if each in response.text and each not in named), None)


async def test_nobody_is_let_in_without_a_token_but_where_the_document_says_so(
    api: Api, document: Json, world: World
) -> None:
    target, faults = await world.target(OURS, MINE), {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://api") as client:
        for operation in operations(document):
            response = await client.send(target.call(operation, client))
            status = None if operation.roles is None else 401
            if found := fault(operation, response, status):
                faults[f"{operation}"] = found
    assert faults == {}


@pytest.mark.parametrize("scoped", [True, False], ids=["scoped", "whole tenant"])
@pytest.mark.parametrize("role", get_args(Role))
async def test_a_role_may_what_the_document_says_and_with_its_own_alone(
    role: Role, scoped: bool, document: Json, world: World
) -> None:
    """Another tenant's jobs and runs are 404, other queues 403, and no answer tells of either."""
    client, faults = await world.client(role, [MINE] if scoped else None), {}
    targets, dead = [await world.target(*of) for of in QUARTERS], [await world.dead(*of) for of in QUARTERS]
    for operation in operations(document):
        if operation.roles is None:
            continue
        for place, target in enumerate(targets):
            request = target.call(operation, client)
            response = await client.send(request)
            hidden = hidden_of([*targets, *dead], scoped=scoped)
            status = refusal(operation, role, target, scoped=scoped)
            if found := fault(operation, response, status) or leak(request, response, hidden):
                faults[f"{operation} of {target.tenant}, {target.queue}"] = found
            if operation.spends_lease and response.status_code == 200:
                targets[place] = await world.target(target.tenant, target.queue)
    assert faults == {}


@pytest.mark.parametrize("scoped", [True, False], ids=["scoped", "whole tenant"])
async def test_who_names_no_queue_is_told_of_its_own_alone(scoped: bool, document: Json, world: World) -> None:
    client, faults = await world.client("admin", [MINE] if scoped else None), {}
    runs = [await make(*of) for make in (world.target, world.dead) for of in QUARTERS]
    for operation in operations(document):
        if operation.roles is None or operation.queue_scope != "filtered":
            continue
        request = runs[0].call(operation, client, names_it=False)
        response = await client.send(request)
        if found := fault(operation, response, None) or leak(request, response, hidden_of(runs, scoped=scoped)):
            faults[f"{operation}"] = found
    assert faults == {}


def hidden_of(targets: Sequence[Target], *, scoped: bool) -> list[Target]:
    """Those that our token may hear nothing of."""
    return [each for each in targets if each.tenant != OURS or (scoped and each.queue != MINE)]


async def test_a_batch_does_nothing_to_others_runs(document: Json, world: World, ledger_pool: Pool) -> None:
    """Its items are refused one by one, another tenant's in the words for a run that never was."""
    client, targets = await world.client("worker", [MINE]), [await world.target(*of) for of in QUARTERS]
    unknown = dataclasses.replace(targets[0], run_id=str(uuid4()))
    for operation in operations(document):
        if not operation.names_runs:
            continue
        said = {}
        for target in (*targets[1:], unknown):
            answer = await client.send(target.call(operation, client))
            [item] = answer.json()["results"]
            said[target] = (item["status"], item["detail"])
        assert {status for status, _ in said.values()} <= {409, 503}, operation
        assert {said[target] for target in targets if target.tenant == THEIRS} == {said[unknown]}, operation
    async with session(ledger_pool) as conn:
        for target in targets[1:]:
            run = await read_run(conn, UUID(target.run_id))
            assert run is not None
            assert (run.state, run.lease_token) == ("leased", target.lease_token)


async def test_the_matrix_has_something_of_each_kind(document: Json) -> None:
    """Else it would prove nothing of it."""
    guarded = [each for each in operations(document) if each.roles is not None]
    assert {each.queue_scope for each in guarded} == {"named", "filtered", "whole", "none"}
    assert {role for each in guarded for role in each.roles or []} == set(get_args(Role))
    for kind in ("names_object", "names_queue", "names_runs"):
        assert any(getattr(each, kind) for each in guarded), kind
