"""Postgres keeps its rows and its address over every kind of stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from connectors.stack import PostgresServer, default_cache_dir
from connectors.stack.processes import Process, wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path, default_cache_dir())
    server.start()
    yield server
    server.stop()


def execute(server: PostgresServer, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_rows_and_address_survive_a_stop_and_a_kill(server: PostgresServer) -> None:
    dsn = server.dsn
    execute(server, "CREATE TABLE kept AS SELECT 1 AS row")
    server.stop()
    assert server.pid is None
    server.start()
    execute(server, "INSERT INTO kept VALUES (2)")
    server.kill()
    assert server.pid is None
    server.start()
    assert server.dsn == dsn
    assert execute(server, "SELECT row FROM kept ORDER BY row") == [(1,), (2,)]


def test_it_starts_again_after_only_the_postmaster_was_killed(server: PostgresServer) -> None:
    assert server.pid is not None
    postmaster = Process.of(server.pid)
    orphans = postmaster.tree()[1:]
    # A frozen backend cannot notice that its postmaster died, so it holds the shared memory until it is made to go.
    orphans[0].send(signal.SIGSTOP)
    os.kill(postmaster.pid, signal.SIGKILL)
    assert wait_until(lambda: not postmaster.alive(), 20)
    server.start()
    assert server.pid != postmaster.pid
    assert not any(orphan.alive() for orphan in orphans)


def test_a_lock_file_that_names_another_process_is_no_obstacle(server: PostgresServer, tmp_path: Path) -> None:
    lock_file = tmp_path / "postgres" / "data" / "postmaster.pid"
    content = lock_file.read_text().splitlines()
    server.kill()
    lock_file.write_text("\n".join([str(os.getpid()), *content[1:]]) + "\n")
    server.start()
    assert execute(server, "SELECT 1") == [(1,)]


def test_it_moves_to_another_port_when_its_own_is_taken(server: PostgresServer) -> None:
    first = server.port
    server.stop()
    with socket.create_server(("127.0.0.1", first)):
        server.start()
        assert server.port != first
        assert execute(server, "SELECT 1") == [(1,)]


def test_a_start_of_a_running_server_changes_nothing(server: PostgresServer, tmp_path: Path) -> None:
    again = PostgresServer(tmp_path, default_cache_dir())
    again.start()
    assert (again.pid, again.dsn) == (server.pid, server.dsn)


def test_commits_are_on_disk_before_they_return(server: PostgresServer) -> None:
    assert execute(server, "SELECT current_setting('fsync'), current_setting('synchronous_commit')") == [("on", "on")]
