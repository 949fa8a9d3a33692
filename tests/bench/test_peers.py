"""What is known of the peers without installing any."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bench.peers import install as installing
from bench.peers.install import HERE, PEERS, install


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_its_script_and_exact_versions(name: str) -> None:
    peer = PEERS[name]
    assert (HERE / peer["script"]).exists()
    assert [package for package in peer["packages"] if not re.fullmatch(r"[\w\[\],-]+(?:==|@)[\d.]+", package)] == []


def test_what_cannot_be_installed_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(installing, "CACHE", tmp_path)
    installed, skipped = install(["pg-boss", "nobody"])
    assert installed == []
    assert skipped["pg-boss"] == "npm is not installed"
    assert skipped["nobody"].startswith("unknown; known are graphile-worker, ")
