"""From records of the commands topic to the ledger, exactly once.

The position (the consumed offset, and the tenants that are ahead of it) moves in the transaction of the effects, so a
record that comes again is a no-op; a command that comes again in another record (a producer that retried) is one by its
id. What cannot be applied is on the rejected
topic, and what belongs elsewhere on its own partition, before the offset moves on: nothing is ever skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ledger.commands import Outcome, read_outcomes, record_outcomes
from ledger.commands_ahead import forget_ahead, note_ahead, offsets_ahead
from ledger.connection import Pool
from ledger.fence import Fence, OwnerTransaction, owner_transaction
from ledger.partitions import advance_offset
from schemas.codec import Codec
from schemas.commands import Command, decode_commands, encode_command, issued_by, issuer_headers, tenant_of
from schemas.errors import CommandRejected, EpochLost, TryAgain
from schemas.events import Event
from schemas.ids import partition_of_job
from streams.command_batch import apply_commands
from streams.effects import Effects
from streams.fair_backlog import Batch
from streams.metrics import APPLY_SECONDS, COMMANDS_APPLIED
from streams.pending_caps import PendingCaps
from streams.rejections import CommandReturns, RawCommand, Rejection, Stray

log = logging.getLogger(__name__)


class Delivered(NamedTuple):
    """A command and the record it came in. place: its index in a batch record."""

    raw: RawCommand
    place: int
    command: Command


class Broken(CommandRejected):
    """The command makes the ledger fail, again and again, by itself."""

    code = "internal_error"


class CommandApplier:
    """Applies records of one partition under one fence. caps: None where no tenant has one."""

    def __init__(
        self,
        fence: Fence,
        pool: Pool,
        returns: CommandReturns,
        codec: Codec,
        partitions: int,
        caps: PendingCaps | None = None,
    ) -> None:
        self._fence, self._pool, self._returns, self._codec, self._partitions = fence, pool, returns, codec, partitions
        self._caps = caps or PendingCaps()

    async def apply(self, batch: Batch) -> list[Event]:
        """Apply records in order, in one transaction; returns the events for the owner's memory.

        A command that breaks the transaction is found by applying them one by one, and rejected.
        Raises EpochLost, LedgerUnavailable and KafkaUnavailable: then apply the same again. What was applied before
        is known by its command's id and left out.
        """
        try:
            return await self._apply_together(batch)
        except (TryAgain, EpochLost):
            raise
        except Exception:
            log.exception("partition %d: a batch of %d records failed", self._fence.partition, len(batch.records))
        events: list[Event] = []
        for record in batch.records:
            events += await self._apply_alone(record, self._after(record, batch))
        async with owner_transaction(self._pool, self._fence) as tx:
            await _move_on(tx, batch)
        return events

    def _after(self, record: RawCommand, batch: Batch) -> Batch:
        """Where the partition is once all of the batch up to the record is applied."""
        if batch.ahead is None:
            return Batch.of([record])
        return Batch([record], 0, {tenant_of(self._codec, record.value): record.offset + 1})

    async def _apply_alone(self, record: RawCommand, after: Batch) -> list[Event]:
        """Apply a record's commands in a transaction each, and move on behind it in the last one."""
        delivered, rejections = decode(self._codec, [record])
        events: list[Event] = []
        broken: list[Outcome] = []
        for each in delivered:
            try:
                async with owner_transaction(self._pool, self._fence) as tx:
                    if not await self._fresh(tx, after):
                        return []
                    effects = await self._apply_commands(tx, [each], rejections)
                self._caps.created(effects.created)
                events += effects.events
            except (TryAgain, EpochLost):
                raise
            except Exception as error:
                log.exception("partition %d: %s of the record at offset %d fails", *_where(each))
                reason = Broken(f"the ledger refuses it: {type(error).__name__}: {error}")
                rejections.append(Rejection(record, reason, each.place, str(each.command.command_id)))
                broken.append(Outcome(each.command.command_id, reason.code, reason.message))
        await self._returns.reject(rejections)
        async with owner_transaction(self._pool, self._fence) as tx:
            if broken:
                await record_outcomes(tx, broken)
            await _move_on(tx, after)
        return events

    async def _apply_together(self, batch: Batch) -> list[Event]:
        # As a context: the decorator would time only the making of the coroutine.
        with APPLY_SECONDS.time():
            return await self._apply_in_transaction(batch)

    async def _apply_in_transaction(self, batch: Batch) -> list[Event]:
        async with owner_transaction(self._pool, self._fence) as tx:
            delivered, rejections = decode(self._codec, await self._fresh(tx, batch))
            effects = await self._apply_commands(tx, delivered, rejections)
            await self._returns.reject(rejections)
            await _move_on(tx, batch)
        self._caps.created(effects.created)
        return effects.events

    async def _fresh(self, tx: OwnerTransaction, batch: Batch) -> list[RawCommand]:
        """Those of the records that are not applied yet: one that failed for all we know may have been committed."""
        left = [record for record in batch.records if record.offset >= tx.consumed_offset]
        if batch.ahead is None or not left:
            return left
        ahead = await offsets_ahead(tx.conn, tx.fence.partition)
        return [record for record in left if record.offset >= ahead.get(tenant_of(self._codec, record.value), 0)]

    async def _apply_commands(
        self, tx: OwnerTransaction, delivered: list[Delivered], rejections: list[Rejection]
    ) -> Effects:
        """Apply what is ours and new; what is rejected is added to `rejections`."""
        delivered = await self._forward_strays(delivered)
        delivered = await _without_repeated(tx, delivered)
        effects = await apply_commands(
            tx, [each.command for each in delivered], self._caps if self._caps.any_set() else None
        )
        for each in delivered:
            if error := effects.rejected.get(each.command.command_id):
                rejections.append(Rejection(each.raw, error, each.place, str(each.command.command_id)))
        COMMANDS_APPLIED.inc(len(effects.outcomes) - len(effects.rejected))
        return effects

    async def _forward_strays(self, delivered: list[Delivered]) -> list[Delivered]:
        """Send what came to the wrong partition to its own; its id keeps a second forwarding harmless."""
        own, strays = [], []
        for each in delivered:
            partition = partition_of_job(each.command.job_id, self._partitions)
            if partition == self._fence.partition:
                own.append(each)
            else:
                wire = encode_command(self._codec, each.command)
                headers = issuer_headers(each.command)
                strays.append(Stray(partition, str(each.command.job_id).encode(), wire, headers))
        if strays:
            await self._returns.forward(strays)
        return own


def decode(codec: Codec, records: Sequence[RawCommand]) -> tuple[list[Delivered], list[Rejection]]:
    """The commands in the records, in order, and what of them cannot be read or is invalid by itself."""
    delivered: list[Delivered] = []
    rejections: list[Rejection] = []
    for raw in records:
        try:
            for place, command in enumerate(decode_commands(codec, raw.value)):
                if isinstance(command, CommandRejected):
                    rejections.append(Rejection(raw, command, place))
                else:
                    delivered.append(Delivered(raw, place, issued_by(command, raw.headers)))
        except CommandRejected as error:
            rejections.append(Rejection(raw, error))
    return delivered, rejections


async def _move_on(tx: OwnerTransaction, batch: Batch) -> None:
    """The batch is applied with this transaction. No position moves back."""
    if batch.position > tx.consumed_offset:
        await advance_offset(tx, batch.position)
    if batch.ahead:
        await note_ahead(tx, batch.ahead)
    if batch.ahead is not None:
        await forget_ahead(tx, batch.position)


def _where(each: Delivered) -> tuple[int, str, int]:
    return each.raw.partition, type(each.command).__name__, each.raw.offset


async def _without_repeated(tx: OwnerTransaction, delivered: list[Delivered]) -> list[Delivered]:
    """Drop commands whose id was applied before, or comes twice in the batch."""
    first = {each.command.command_id: each for each in reversed(delivered)}
    known = await read_outcomes(tx.conn, list(first)) if first else {}
    return [
        each for each in delivered if first[each.command.command_id] is each and each.command.command_id not in known
    ]
