"""Commands that were made for one version of a job have no effect on another one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ledger.connection import Pool, session
from ledger.fence import owner_transaction, take_over
from ledger.jobs import read_jobs
from schemas.commands import Command, DeleteJob
from schemas.ids import new_id
from streams.command_batch import apply_commands
from streams.effects import Effects
from tests.streams.commands import create, delete, job_on, pause, resume, update

PARTITION = 5


async def apply(pool: Pool, *commands: Command) -> Effects:
    takeover = await take_over(pool, PARTITION, "me")
    async with owner_transaction(pool, takeover.fence) as tx:
        return await apply_commands(tx, commands)


def delete_at(made: Command, version: int) -> DeleteJob:
    return DeleteJob(
        command_id=new_id(), tenant="acme", job_id=made.job_id, issued_at=made.issued_at, if_version=version
    )


@pytest.mark.parametrize(("version", "state"), [(2, "active"), (3, "deleted"), (4, "active")])
async def test_a_delete_takes_effect_only_at_the_version_it_was_made_for(
    ledger_pool: Pool, version: int, state: str
) -> None:
    made = create(job_on(PARTITION))
    deletion = delete_at(made, version)
    effects = await apply(ledger_pool, made, pause(made.job_id), resume(made.job_id), deletion)
    conflicts = {command_id: (error.code, error.field) for command_id, error in effects.rejected.items()}
    assert conflicts == ({} if state == "deleted" else {deletion.command_id: ("job_conflict", "ifVersion")})
    async with session(ledger_pool) as conn:
        assert (await read_jobs(conn, [made.job_id]))[made.job_id].state == state


async def test_an_edit_that_comes_after_a_newer_one_is_rejected(ledger_pool: Pool) -> None:
    """Case kaf-011: both were made of version 1; the one that arrives later finds version 2."""
    made = create(job_on(PARTITION))
    newer, older = (replace(update(made.job_id, queue=queue), if_version=1) for queue in ("newer", "older"))
    effects = await apply(ledger_pool, made, newer, older)
    assert {command_id: (error.code, error.field) for command_id, error in effects.rejected.items()} == {
        older.command_id: ("job_conflict", "ifVersion")
    }
    async with session(ledger_pool) as conn:
        assert (await read_jobs(conn, [made.job_id]))[made.job_id].queue == "newer"


async def test_a_delete_of_what_is_deleted_conflicts_with_nothing(ledger_pool: Pool) -> None:
    made = create(job_on(PARTITION))
    effects = await apply(ledger_pool, made, delete(made.job_id), delete_at(made, 1))
    assert effects.rejected == {}
