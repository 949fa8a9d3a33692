"""Installs the peers that a benchmark asks for, by plain pip and npm, into bench/.peers/; what cannot be, is skipped.

A folder is named by its packages' versions, so that it is made once, and again when a version changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from bench.cluster import say

HERE = Path(__file__).parent
CACHE = HERE.parent / ".peers"
INSTALL_DEADLINE_S = 900

_VERSIONS = tomllib.loads((HERE / "versions.toml").read_text())
PEERS: Mapping[str, Mapping[str, Any]] = _VERSIONS["peers"]


class Installed(NamedTuple):
    """How to run a peer's script. argv: interpreter and script. store: postgres or redis. most: see versions.toml."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    store: str
    folder: Path
    most: Mapping[str, int]


class NotInstallable(Exception):
    """Why a peer is skipped."""


def install(names: Sequence[str]) -> tuple[list[Installed], dict[str, str]]:
    """The peers that are there now, and why the others are not."""
    installed: list[Installed] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            installed.append(_peer(name))
        except NotInstallable as reason:
            skipped[name] = str(reason)
            say(f"{name} is skipped: {reason}")
    return installed, skipped


def _peer(name: str) -> Installed:
    if name not in PEERS:
        raise NotInstallable(f"unknown; known are {', '.join(PEERS)}")
    peer = PEERS[name]
    if peer["script"].endswith(".mjs"):
        node = _npm("node", _VERSIONS["node"]["packages"]) / _VERSIONS["node"]["binary"]
        folder = _npm(name, peer["packages"])
        interpreter = str(node)
    else:
        folder = _pip(name, peer["packages"])
        interpreter = str(folder / "bin" / "python")
    environment = {"PEER_FOLDER": str(folder), "PYTHONPATH": str(HERE.parent.parent)}
    argv = [interpreter, str(HERE / peer["script"])]
    return Installed(name, argv, environment, peer["store"], folder, peer.get("most", {}))


def _pip(name: str, packages: Sequence[str]) -> Path:
    def make(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])

    return _once(name, packages, make)


def _npm(name: str, packages: Sequence[str]) -> Path:
    if shutil.which("npm") is None:
        raise NotInstallable("npm is not installed")

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "package.json").write_text("{}\n")
        _run(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", *packages])

    return _once(name, packages, make)


def _once(name: str, packages: Sequence[str], make: Any) -> Path:
    """The folder with these packages. Half an installation is not taken for one: a file says that it is whole."""
    folder = CACHE / f"{name}-{sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    whole = folder / ".whole"
    if not whole.exists():
        say(f"installing {' '.join(packages)}")
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)
        whole.touch()
    return folder


def _run(command: list[str]) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=INSTALL_DEADLINE_S, env=dict(os.environ)
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        raise NotInstallable(f"{Path(command[0]).name} failed: {lines[-1] if lines else error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallable(str(error)) from error
