"""Copies what the client shares with the server out of schemas/: Avro, the rules of schedules, the depth of JSON.

    python connectors/client/generate_copies.py    (or: make copies)

The client is published without the server, so it cannot import schemas/; one source and a test keep the two equal. Of
schemas/errors.py only the classes that the schedule rules raise come along, under the client's own root.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SCHEMAS = Path(__file__).parents[2] / "schemas"
PACKAGE = Path(__file__).parent / "src" / "fencepost"

MODULES = (
    "cron",
    "cron_fields",
    "cron_terms",
    "json_depth",
    "schedule",
    "schedule_json",
    "schedule_kinds",
    "schedule_preview",
    "zone_rule",
    "zones",
)
ERRORS = ("CommandRejected", "InvalidSchedule", "UnknownZone", "InvariantBroken")

HEADER = "# Generated from schemas/{source} by connectors/client/generate_copies.py (make copies): change it there.\n"
INIT = '''"""The server's rules of schedules, for seeing schedules without one. All files are copies."""\n'''
ERRORS_HEAD = '''"""What the rules of schedules raise; what the client itself raises is in fencepost/errors.py."""

from __future__ import annotations

from fencepost.errors import FencepostError

'''


def copies() -> Mapping[Path, bytes]:
    """The contents of every copied file, by its path in the client's package."""
    avro = {Path("avro", file.name): file.read_bytes() for file in SCHEMAS.glob("avro/*.avsc")}
    rules = {f"{name}.py": HEADER.format(source=f"{name}.py") + _module(name) for name in MODULES}
    rules["errors.py"] = HEADER.format(source="errors.py") + ERRORS_HEAD + _classes("errors", ERRORS)
    rules["__init__.py"] = HEADER.format(source="") + INIT
    return avro | {Path("schedules", name): _formatted(text) for name, text in rules.items()}


def stale_files(package: Path, wanted: Mapping[Path, bytes]) -> list[Path]:
    """Files in the folders of copies that are no copies any more."""
    folders = {path.parent for path in wanted}
    found = {path.relative_to(package) for folder in folders for path in (package / folder).glob("*.*")}
    return sorted(path for path in found - wanted.keys() if path.suffix in (".avsc", ".py"))


def write_copies(package: Path) -> None:
    """Make the package's copies anew."""
    wanted = copies()
    for path, content in wanted.items():
        (package / path).parent.mkdir(exist_ok=True)
        (package / path).write_bytes(content)
    for path in stale_files(package, wanted):
        (package / path).unlink()


def _module(name: str) -> str:
    source = (SCHEMAS / f"{name}.py").read_text(encoding="utf-8")
    return re.sub(r"\bschemas[.](?=\w)", "fencepost.schedules.", source)


def _classes(name: str, wanted: tuple[str, ...]) -> str:
    """The source of these classes, in the order of the module."""
    source = (SCHEMAS / f"{name}.py").read_text(encoding="utf-8")
    found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    texts = (ast.get_source_segment(source, node) for name, node in found.items() if name in wanted)
    return "\n\n".join(f"{text}\n" for text in texts)


def _formatted(text: str) -> bytes:
    """As `make format` would have it: longer module names may not fit on the line that shorter ones did."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", __file__, "-"]
    return subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    write_copies(PACKAGE)
