"""As root, Postgres runs as an unprivileged user, with no more rights than its folders need."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from connectors.stack.os_user import USER, give_to_user, unprivileged

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def run(argv: list[str], path: Path) -> str:
    done = subprocess.run(unprivileged(argv, [path]), capture_output=True, text=True, check=True)
    return done.stdout.strip()


@as_root
def test_a_command_runs_as_the_unprivileged_user() -> None:
    assert run(["id", "-un"], Path("/usr")) == USER


@as_root
def test_it_has_no_capability_where_every_folder_is_open() -> None:
    assert "CapEff:\t0000000000000000" in run(["cat", "/proc/self/status"], Path("/usr/bin"))


@as_root
def test_it_reaches_its_folder_through_one_that_is_closed_to_others(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    own = closed / "own"
    give_to_user(own)
    run(["touch", str(own / "file")], own / "file")
    assert (own / "file").owner() == USER
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user that is not root")
def test_another_user_runs_the_command_itself() -> None:
    assert unprivileged(["id"], [Path("/usr")]) == ["id"]
