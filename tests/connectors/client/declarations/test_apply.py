"""`fencepost plan` and `fencepost apply` on the real API: what was planned is what is done, and nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from fencepost import declaration_client
from fencepost.client import FencepostClient
from fencepost.declarations.application import apply_plan, found_jobs
from fencepost.declarations.errors import PlanMoved
from fencepost.declarations.plan import Plan
from fencepost.job_spec import JobSpec, parse_spec
from fencepost.models import CommandAnswer
from ledger.connection import Pool, session
from ledger.tokens import create_token
from tests.connectors.client.declarations.conftest import Shell
from tests.connectors.client.declarations.declared import job

AT_NINE = job('{cron: "0 9 * * *"}')
AT_TEN = job('{cron: "0 10 * * *"}')
HOURLY = job('{cron: "@hourly"}', payload="{to: ops}")

Seen = dict[str, tuple[str, int, Any]]


async def served(client: FencepostClient) -> Seen:
    """State, version and schedule of the set's jobs, by name."""
    found, _ = await found_jobs(client, "billing")
    return {each.declared_as: (each.state, each.version, each.schedule.get("cron")) for each in found}


async def kept_plan(shell: Shell, *options: str) -> Plan:
    result = await shell("plan", shell.file, "--out", shell.kept, *options)
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(shell.kept.read_bytes(), type=Plan)


async def test_a_plan_changes_nothing_and_its_application_all_of_it(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE, sync=HOURLY, old=HOURLY)
    told = await shell.plan()
    assert await served(client) == {}
    assert "3 applied" in await shell.applied(shell.file, "--plan", told)
    shell.declare(mails=AT_TEN, sync=HOURLY, new=AT_NINE)
    assert "2 applied" in await shell.applied(shell.file, "--plan", await shell.plan())
    assert await served(client) == {
        "billing/mails": ("active", 2, "0 10 * * *"),
        "billing/sync": ("active", 1, "@hourly"),
        "billing/old": ("active", 1, "@hourly"),
        "billing/new": ("active", 1, "0 9 * * *"),
    }


async def test_jobs_that_are_not_in_the_file_are_deleted_only_with_prune(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE, old=HOURLY)
    await shell.applied(shell.file, "--yes")
    shell.declare(mails=AT_NINE)
    assert "nothing to do" in await shell.applied(shell.file, "--yes")
    without = await shell.plan()
    told = await shell.plan("--prune")
    assert told != without
    refused = await shell("apply", shell.file, "--prune", "--plan", without)
    assert (refused.exit_code, (await served(client))["billing/old"][0]) == (1, "active")
    await shell.applied(shell.file, "--prune", "--plan", told)
    assert (await served(client))["billing/old"] == ("deleted", 2, "@hourly")


async def test_a_job_that_was_deleted_can_be_declared_again(shell: Shell, client: FencepostClient) -> None:
    for bodies in ({"mails": AT_NINE}, {}, {"mails": AT_NINE}, {}, {"mails": AT_TEN}):
        shell.declare(**bodies)
        await shell.applied(shell.file, "--yes", "--prune")
    found, _ = await found_jobs(client, "billing")
    assert sorted(each.state for each in found) == ["active", "deleted", "deleted"]
    assert {each.declared_as for each in found} == {"billing/mails"}


async def test_a_plan_whose_base_has_moved_is_refused_and_says_what_moved(
    shell: Shell, client: FencepostClient
) -> None:
    shell.declare(mails=AT_NINE, sync=HOURLY)
    await shell.applied(shell.file, "--yes")
    shell.declare(mails=AT_TEN, sync=HOURLY)
    told, plan = await shell.plan(), await kept_plan(shell)
    sync = next(each.job_id for each in plan.jobs if each.name == "sync")
    await client.pause_job(sync)
    again: list[list[str | Path]] = [["apply", shell.file, "--plan", told], ["apply", shell.kept]]
    for args in again:
        refused = await shell(*args)
        assert refused.exit_code == 1
        assert "make another one" in refused.stderr
    assert f"sync ({sync}) was active at version 1, is paused at version 2" in refused.stderr
    assert (await served(client))["billing/mails"] == ("active", 1, "0 9 * * *")


async def test_a_plan_of_another_file_is_refused(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE)
    told = await shell.plan()
    shell.declare(mails=AT_TEN)
    refused = await shell("apply", shell.file, "--plan", told)
    assert refused.exit_code == 1
    assert "the file has changed" in refused.stderr
    assert await served(client) == {}


async def test_applying_again_changes_nothing_more(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE, old=HOURLY)
    await shell.applied(shell.file, "--yes")
    shell.declare(mails=AT_TEN, new=HOURLY)
    told, _ = await shell.plan("--prune"), await kept_plan(shell, "--prune")
    assert "3 applied" in await shell.applied(shell.kept)
    after = await served(client)
    assert "0 applied, 3 had been before" in await shell.applied(shell.kept)
    assert "nothing to do" in await shell.applied(shell.file, "--prune", "--plan", told)
    assert await served(client) == after


async def test_an_application_that_broke_off_is_finished_by_the_next(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE, old=HOURLY)
    await shell.applied(shell.file, "--yes")
    shell.declare(mails=AT_TEN, new=HOURLY)
    plan = await kept_plan(shell, "--prune")
    first = msgspec.structs.replace(plan, jobs=[each for each in plan.jobs if each.name != "old"])
    assert sorted((await apply_plan(client, first)).done) == ["mails", "new"]
    result = await apply_plan(client, plan)
    assert (result.done, sorted(result.already)) == (["old"], ["mails", "new"])


class MovingClient(FencepostClient):
    """Pauses each job right before it is changed, as somebody else might."""

    async def update_job(self, job_id: UUID, spec: JobSpec, **options: Any) -> CommandAnswer:
        await self.pause_job(job_id)
        return await super().update_job(job_id, spec, **options)

    async def delete_job(self, job_id: UUID, **options: Any) -> CommandAnswer:
        await self.pause_job(job_id)
        return await super().delete_job(job_id, **options)


async def test_a_job_that_moves_between_the_check_and_the_command_is_refused_by_its_owner(
    shell: Shell, client: FencepostClient, api_url: str, token: str
) -> None:
    shell.declare(mails=AT_NINE, old=HOURLY)
    await shell.applied(shell.file, "--yes")
    shell.declare(mails=AT_TEN, new=AT_TEN)
    plan = await kept_plan(shell, "--prune")
    async with MovingClient(api_url, token) as moving:
        result = await apply_plan(moving, plan)
    assert (result.done, sorted(result.refused)) == (["new"], ["mails", "old"])
    assert all("is at version 2, not 1" in reason for reason in result.refused.values())
    seen = await served(client)
    assert (seen["billing/mails"], seen["billing/old"]) == (("paused", 2, "0 9 * * *"), ("paused", 2, "@hourly"))


async def test_a_definition_that_the_server_refuses_does_not_hold_up_the_others(
    shell: Shell, client: FencepostClient, ledger_pool: Pool
) -> None:
    shell.declare(mails=AT_NINE, sms='{queue: sms, schedule: {cron: "@hourly"}}')
    plan = await kept_plan(shell)
    async with session(ledger_pool) as conn:
        scoped = await create_token(conn, "acme", "producer", ["mail"])
    shell.env["FENCEPOST_TOKEN"] = scoped
    result = await shell("apply", shell.kept)
    assert result.exit_code == 1
    assert "sms: 403 queue: the token is not scoped to queue sms" in result.stderr
    assert list(await served(client)) == ["billing/mails"]
    assert len(plan.actions()) == 2


async def test_without_a_plan_the_plan_is_shown_and_asked_about(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE)
    declined = await shell("apply", shell.file, stdin="n\n")
    assert declined.exit_code == 1
    assert "7 added" in declined.stdout
    assert await served(client) == {}
    agreed = await shell("apply", shell.file, stdin="y\n")
    assert "1 applied" in agreed.stdout
    assert list(await served(client)) == ["billing/mails"]


async def test_a_set_owns_only_what_it_created(shell: Shell, client: FencepostClient) -> None:
    await client.create_job(parse_spec({"queue": "mail", "schedule": {"cron": "@daily"}, "declaredAs": "other/mails"}))
    shell.declare(mails=AT_NINE)
    assert (await kept_plan(shell, "--prune")).base == []
    plan = await kept_plan(shell, "--prune", "--set", "other")
    assert [(each.name, each.action) for each in plan.jobs] == [("mails", "change")]


async def test_a_plan_for_another_tenant_is_refused(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE)
    plan = await kept_plan(shell)
    shell.kept.write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, tenant="rival")))
    refused = await shell("apply", shell.kept)
    assert refused.exit_code == 1
    assert "it is for tenant rival, and the token is of acme" in refused.stderr
    assert await served(client) == {}


async def test_plans_are_json_for_programs_and_mistakes_are_usage_errors(shell: Shell) -> None:
    shell.declare(mails=AT_NINE)
    made = msgspec.json.decode((await shell("plan", shell.file, "--json", "--horizon", "2d")).stdout_bytes, type=Plan)
    assert (len(made.jobs[0].occurrences.added), (made.end - made.start).days) == (2, 2)
    for verb, option, value, said in (
        ("plan", "--horizon", "2y", "36h, 7d or 4w"),
        ("plan", "--from", "2026-03-01T00:00", "needs an offset"),
        ("apply", "--plan", "12", "64 hexadecimal digits"),
    ):
        refused = await shell(verb, shell.file, option, value)
        assert refused.exit_code in (1, 2)
        assert said in refused.stderr
    shell.file.write_text("jobs: {mails: {queue: mail}}")
    refused = await shell("plan", shell.file)
    assert refused.exit_code == 2
    assert "billing.yaml:1:8: jobs.mails.schedule" in refused.stderr


async def test_a_set_of_several_pages_is_applied_and_found_whole(
    shell: Shell, client: FencepostClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaration_client, "PAGE", 20)
    shell.declare(**{f"job-{number}": AT_NINE for number in range(70)})
    assert "70 applied" in await shell.applied(shell.file, "--yes")
    assert len(await served(client)) == 70
    assert "nothing to do" in await shell.applied(shell.file, "--yes")


async def test_moved_jobs_raise_before_anything_is_done(shell: Shell, client: FencepostClient) -> None:
    shell.declare(mails=AT_NINE)
    plan = await kept_plan(shell)
    shell.declare(mails=HOURLY)
    await shell.applied(shell.file, "--yes")
    with pytest.raises(PlanMoved, match=r"mails .* was not there, is active at version 1"):
        await apply_plan(client, plan)


CODEC = ("--payload-codec", "tests.connectors.client.codec_of_tests:codec")


async def payload_of(client: FencepostClient, name: str) -> Any:
    """As the server has it."""
    [found] = [each for each in (await found_jobs(client, "billing"))[0] if each.declared_as == f"billing/{name}"]
    return found.payload


async def test_payloads_of_a_file_are_sealed_and_what_is_sealed_is_no_change(
    shell: Shell, client: FencepostClient
) -> None:
    shell.declare(sync=HOURLY, bare=AT_NINE)
    assert "2 applied" in await shell.applied(shell.file, "--plan", await shell.plan(*CODEC), *CODEC)
    assert [*await payload_of(client, "sync")] == ["encrypted"]
    assert await payload_of(client, "bare") is None
    assert "nothing to do" in await shell.applied(shell.file, "--yes", *CODEC)


async def test_a_payload_that_was_readable_is_sealed_by_the_next_plan_with_a_codec(
    shell: Shell, client: FencepostClient
) -> None:
    shell.declare(sync=HOURLY)
    await shell.applied(shell.file, "--yes")
    assert await payload_of(client, "sync") == {"to": "ops"}
    assert "1 applied" in await shell.applied(shell.file, "--yes", *CODEC)
    assert [*await payload_of(client, "sync")] == ["encrypted"]


async def test_a_plan_with_a_codec_is_never_applied_without_one(shell: Shell, client: FencepostClient) -> None:
    shell.declare(sync=HOURLY)
    told = await shell.plan(*CODEC, "--out", str(shell.kept))
    for args in ((shell.file, "--plan", told), (shell.kept,)):
        assert (await shell("apply", *args)).exit_code != 0
    assert await served(client) == {}
    assert "1 applied" in await shell.applied(shell.kept, *CODEC)
