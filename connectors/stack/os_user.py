"""Postgres refuses to run as root: as root, its programs run as an unprivileged user made for it."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

from connectors.stack.errors import StackError

USER = "fencepost"


def unprivileged(argv: list[str], paths: Iterable[Path]) -> list[str]:
    """The command, run as the unprivileged user when this process is root and unchanged otherwise.

    paths: what the command must reach. Where a parent folder is closed to others (a root home, a private
    temporary folder), it is granted CAP_DAC_OVERRIDE instead of opening that folder to everybody.
    """
    if os.geteuid() != 0:
        return argv
    user = _ensure_user()
    prefix = [_setpriv(), f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    if not all(_passable(path) for path in paths):
        prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return [*prefix, "--", *argv]


def give_to_user(folder: Path) -> None:
    """Make the folder and, as root, hand it to the unprivileged user."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        user = _ensure_user()
        os.chown(folder, user.pw_uid, user.pw_gid)


def _ensure_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        argv = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER]
        made = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        return pwd.getpwnam(USER)  # also when another process made it in the meantime
    except KeyError:
        raise StackError(f"Postgres needs an unprivileged user: useradd {USER}: {made.stderr}") from None


def _setpriv() -> str:
    found = shutil.which("setpriv")
    if found is None:
        raise StackError("running Postgres as root needs setpriv (util-linux); install it or use another user")
    return found


def _passable(path: Path) -> bool:
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)
