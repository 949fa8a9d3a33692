"""The file: YAML whose `jobs` are named bodies of POST /v1/jobs.

    set: billing            # optional; the file's name without its ending
    jobs:
      invoices:
        queue: mail
        schedule: {cron: "0 9 * * mon-fri", zone: Europe/Berlin}

The set owns its jobs: what is in it on the server and not in the file can be pruned.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from fencepost.declarations.definitions import Definition, definition_of
from fencepost.declarations.placed_yaml import PlacedYaml, read_yaml
from fencepost.errors import InvalidInput
from fencepost.ids import idempotent_id

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
MOST_NAME_CHARS = 180  # of the set's and the job's name: both are in an idempotency key, which has at most 200
KNOWN = ("set", "jobs")


class DeclaredSet(NamedTuple):
    """jobs: definitions by name, in the order of the file. sealed: their payloads leave encrypted."""

    name: str
    jobs: dict[str, Definition]
    sealed: bool = False


def read_job_file(path: Path, *, tenant: str, set_name: str | None = None) -> DeclaredSet:
    """The set of a file. Raises InvalidJobFile with the place, or InvalidInput when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    return parse_job_file(text, file=path.name, tenant=tenant, set_name=set_name)


def parse_job_file(text: str, *, file: str, tenant: str, set_name: str | None = None) -> DeclaredSet:
    """The set in a file's text. set_name: instead of what the file says. Raises InvalidJobFile."""
    document = read_yaml(text, file)
    content = document.value
    if not isinstance(content, dict):
        raise document.invalid((), "the file is a mapping with `jobs`")
    for name in content:
        if name not in KNOWN:
            raise document.invalid((name,), f"is no field of the file, which has {' and '.join(KNOWN)}")
    set_name = _checked_name(document, set_name or content.get("set", Path(file).stem), ("set",))
    jobs = content.get("jobs")
    if not isinstance(jobs, dict):
        raise document.invalid(("jobs",) if "jobs" in content else (), "`jobs` is a mapping of names to jobs")
    return DeclaredSet(set_name, {name: _definition(document, set_name, name, tenant) for name in jobs})


def declared_key(set_name: str, name: str, generation: int = 1) -> str:
    """The idempotency key whose job id a declared job has. generation: grows when a deleted job is declared again."""
    return f"declared/{set_name}/{name}" + (f"#{generation}" if generation > 1 else "")


def _definition(document: PlacedYaml, set_name: str, name: Any, tenant: str) -> Definition:
    _checked_name(document, name, ("jobs", name))
    if len(set_name) + len(name) > MOST_NAME_CHARS:
        told = f"the names of the set and of the job have more than {MOST_NAME_CHARS} characters together"
        raise document.invalid(("jobs", name), told)
    try:
        return definition_of(document.value["jobs"][name], idempotent_id(tenant, declared_key(set_name, name)))
    except InvalidInput as error:
        message, path = _place(error)
        raise document.invalid(("jobs", name, *path), message) from error


def _place(error: InvalidInput) -> tuple[str, list[str]]:
    """The message without its field, and the field's path. msgspec tells unknown and missing fields in the message."""
    path = error.field.split(".") if error.field else []
    message = str(error).removeprefix(f"{error.field}: ")
    if unknown := re.search(r"unknown field `([^`]*)`", message):
        return "there is no such field", [*path, unknown[1]]
    return message, path


def _checked_name(document: PlacedYaml, name: Any, path: tuple[Any, ...]) -> str:
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise document.invalid(path, f"{str(name)[:100]!r} is no name: 1 to 100 letters, digits and _ . : -")
