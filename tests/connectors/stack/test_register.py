"""The state folder's memory: ports that stay, changes that do not get lost."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connectors.stack.ports import FIRST_PORT, LAST_PORT, free_port, is_free
from connectors.stack.register import PartRecord, Register, locked


def test_a_free_port_is_outside_the_ephemeral_range() -> None:
    assert FIRST_PORT <= free_port() <= LAST_PORT < 32_768


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not is_free(listener.getsockname()[1])


def test_a_port_is_claimed_again_while_it_is_free(tmp_path: Path) -> None:
    first = Register(tmp_path).claim_port("kafka")
    assert Register(tmp_path).claim_port("kafka") == first


def test_another_port_is_claimed_when_somebody_took_it(tmp_path: Path) -> None:
    register = Register(tmp_path)
    first = register.claim_port("kafka")
    with socket.create_server(("127.0.0.1", first)):
        second = register.claim_port("kafka")
    assert second != first
    assert register.port("kafka") == second


def test_the_port_wanted_wins_over_the_one_remembered(tmp_path: Path) -> None:
    register = Register(tmp_path)
    register.claim_port("kafka")
    wanted = free_port()
    assert register.claim_port("kafka", wanted) == wanted == register.port("kafka")


def test_changes_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [f"role-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Register(tmp_path).put(name, PartRecord(1, 0.0)), names))
    assert sorted(Register(tmp_path).read().parts) == sorted(names)


def test_a_lock_that_is_held_is_refused_at_once_when_told_not_to_wait(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"), pytest.raises(BlockingIOError), locked(tmp_path / "lock", wait=False):
        pass
    with locked(tmp_path / "lock", wait=False):
        pass
