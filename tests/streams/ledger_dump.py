"""The whole ledger as data, to compare before with after."""

from __future__ import annotations

from typing import Any

from ledger.connection import Pool, session

_TABLES = {
    "jobs": "job_id",
    "runs": "run_id",
    "dead_runs": "run_id",
    "partitions": "partition",
    "applied_commands": "command_id",
    "outbox": "id",
}


async def dump(pool: Pool, *without: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table that commands write, but for the columns `without`."""
    tables = {}
    async with session(pool) as conn:
        for table, key in _TABLES.items():
            cursor = await conn.execute(f"SELECT * FROM {table} ORDER BY {key}")
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]
            tables[table] = [{name: row[name] for name in row.keys() - set(without)} for row in rows]
    return tables


async def fetch(pool: Pool, query: str, *params: Any) -> list[Any]:
    """Rows; of a single column its values."""
    async with session(pool) as conn:
        rows = await (await conn.execute(query, params)).fetchall()
    return [row[0] if len(row) == 1 else tuple(row) for row in rows]
