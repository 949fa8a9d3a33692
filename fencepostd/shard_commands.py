"""`fencepostd shard`: the shards of an installation, and which of them has which partition."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click
from psycopg.conninfo import conninfo_to_dict

from fencepostd.refusals import refusals
from ledger.connection import ledger_pool, session
from ledger.migrations import migrate
from ledger.moves import Move, list_moves
from ledger.partition_moves import abort_move, move_partition
from ledger.shard_map import HOME, ShardMap, add_shard, prove_home, read_shard_map
from ledger.shards import Shards, open_shards
from schemas.errors import LedgerUnavailable

postgres_option = click.option(
    "--postgres", required=True, envvar="FENCEPOST_POSTGRES", show_envvar=True, help="Home's DSN, as roles have it."
)


@click.group()
def shard() -> None:
    """The databases of an installation, and which of them has which partition.

    An installation begins with the shards that `fencepostd init` was told of. When they become too small, add one and
    move partitions to it, while everything runs:

    \b
        fencepostd shard add postgresql://new-host/fencepost
        fencepostd shard move-partition 7 --to 1
        fencepostd shard list
    """


@shard.command("list")
@postgres_option
@refusals
def list_shards(postgres: str) -> None:
    """Show each shard's address (without its password) and partitions, and the moves that are not over."""
    found, moves = asyncio.run(_read(postgres))
    for number, dsn in {HOME: postgres, **found.dsns}.items():
        held = found.held_by(number)
        click.echo(f"shard {number:<3} {_address(dsn):<40} {len(held)} partitions{': ' if held else ''}{ranges(held)}")
    for move in moves:
        if not move.is_over:
            where = f"partition {move.partition}: shard {move.from_shard} to {move.to_shard}, {move.state}"
            click.echo(
                f"{where} since {move.changed_at:%Y-%m-%d %H:%M:%S} UTC; when no process works on it any more, the "
                "relay role ends it, or the same command goes on"
            )


@shard.command()
@postgres_option
@click.argument("dsn")
@refusals
def add(postgres: str, dsn: str) -> None:
    """Make the empty database DSN the next shard: its tables, its number, its place on the map.

    It has no partition until one is moved there. Every process notices it within seconds, so none need be restarted.
    All of them must be able to reach it by this DSN. Safe to repeat.
    """
    for name in migrate(dsn):
        click.echo(f"migrated {name}")
    click.echo(f"shard {asyncio.run(_add(postgres, dsn))} is {_address(dsn)}")


@shard.command("move-partition")
@postgres_option
@click.argument("partition", type=int)
@click.option("--to", "to_shard", type=int, help="The number of the shard that is to have it.")
@click.option("--abort", is_flag=True, help="Take back a move that was left half-way.")
@refusals
def move(postgres: str, partition: int, to_shard: int | None, abort: bool) -> None:
    """Move PARTITION with all its jobs and runs to another shard, while everything runs.

    Rows are copied first, which takes as long as it takes. Then the partition stands still for a moment: calls about
    its runs wait, nothing fails. In the end its rows are removed where they were. It is refused, and nothing happens,
    while the relay is more than a second behind. A shard that goes away meanwhile, or whose standby is promoted, is
    asked for a minute what it knows; never two shards have the partition.

    When this is ended half-way, whichever way, the same command goes on; with --abort instead of --to the partition
    stays where it was. Where neither is done the relay role takes it back within seconds, or finishes it when the
    partition was through.

    \b
        fencepostd shard move-partition 7 --to 1
        fencepostd shard move-partition 7 --abort
    """
    if (to_shard is None) != abort:
        raise click.UsageError("say either --to SHARD, or --abort")

    async def work() -> None:
        async with _shards(postgres) as shards:
            if to_shard is None:
                await abort_move(shards, partition, click.echo)
            else:
                await move_partition(shards, partition, to_shard, click.echo)

    try:
        asyncio.run(_until_terminated(work()))
    except LedgerUnavailable as error:
        raise click.ClickException(f"{error}; the same command goes on, or --abort takes the move back") from error


@asynccontextmanager
async def _shards(dsn: str) -> AsyncIterator[Shards]:
    async with open_shards(dsn, name="fencepost-mover") as shards:
        yield shards


async def _until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM ends it as SIGINT does: not in between two steps that belong together."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


async def _read(dsn: str) -> tuple[ShardMap, Sequence[Move]]:
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        return await read_shard_map(conn), await list_moves(conn)


async def _add(home_dsn: str, dsn: str) -> int:
    async with (
        ledger_pool(home_dsn, size=1) as home_pool,
        session(home_pool) as home,
        ledger_pool(dsn, size=1) as pool,
        session(pool) as conn,
    ):
        await prove_home(home)
        return await add_shard(home, dsn, conn)


def _address(dsn: str) -> str:
    """Where it is, without what is secret."""
    found = conninfo_to_dict(dsn)
    return f"{found.get('host', 'local')}:{found.get('port', 5432)}/{found.get('dbname', '')}"


def ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1-3 7`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return " ".join("-".join(map(str, ends)) for ends in found)
