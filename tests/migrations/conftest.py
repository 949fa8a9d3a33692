"""Databases of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

NewDatabase = Callable[[], str]


@pytest.fixture
def new_database(postgres_server: str) -> Iterator[NewDatabase]:
    """Makes an empty database and returns its DSN."""
    made: list[str] = []
    with psycopg.connect(postgres_server, autocommit=True) as conn:

        def make() -> str:
            made.append(name := f"migrations_{uuid4().hex[:12]}")
            conn.execute(f"CREATE DATABASE {name}")
            return make_conninfo(postgres_server, dbname=name)

        yield make
        for name in made:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")
