"""On which shard a partition is, as home's map says (`placements`), read when it is needed."""

from __future__ import annotations

from typing import Any

from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import Row

READ_PLACEMENT = "SELECT shard, number, moving_to, left_at FROM placements WHERE partition = %s"


class Placement(Row):
    """A row of home's map. number: of the last move. moving_to: while a move is under way that is not decided.

    left_at: the shard where an old copy may be left, once a move is decided.
    """

    partition: int
    shard: int
    number: int = 0
    moving_to: int | None = None
    left_at: int | None = None


@models(READ_PLACEMENT)
def read_placement(tx: Transaction, params: Any) -> Rows:
    return [tx.get("placements", params[0])]


class Placements:
    """A process's memory of the map."""

    def __init__(self, pools: list[Any]) -> None:
        self._home = pools[0]
        self._known: dict[int, int] = {}

    def known(self, partition: int) -> int | None:
        return self._known.get(partition)

    def forget(self, partition: int) -> None:
        self._known.pop(partition, None)

    async def of(self, partition: int) -> int:
        """As it was known last. Raises LedgerUnavailable."""
        found = self._known.get(partition)
        return await self.look(partition) if found is None else found

    async def look(self, partition: int) -> int:
        """As it is now. Raises LedgerUnavailable."""
        async with self._home.connection() as conn:
            placement: Placement = await (await conn.execute(READ_PLACEMENT, (partition,))).fetchone()
        self._known[partition] = placement.shard
        return placement.shard
