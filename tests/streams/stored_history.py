"""A history store to test with, and what lies in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streams.history_store import HistoryStore


@contextmanager
def opened(path: Path) -> Iterator[HistoryStore]:
    store = HistoryStore(path)
    try:
        yield store
    finally:
        store.close()


def read(store: HistoryStore, sql: str) -> list[Any]:
    with store.cursor() as reader:
        return reader.execute(sql).fetchall()
