"""How answers are printed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click
import msgspec

from fencepost.models import Column, QueryAnswer

WIDTH_MAX = 60


def print_fields(answer: msgspec.Struct, as_json: bool) -> None:
    """A struct: its set fields under each other, or as one JSON object."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return
    fields = {field.encode_name: getattr(answer, field.name) for field in msgspec.structs.fields(answer)}
    shown = {name: printable(_text(value)) for name, value in fields.items() if value is not None}
    width = max(map(len, shown))
    for name, value in shown.items():
        lines = value.replace("\n", f"\n{'':{width}}  ")  # so that no value looks like another field
        click.echo(f"{name:<{width}}  {lines}")


def print_table(answer: QueryAnswer) -> None:
    """Rows under their column names; numbers to the right, long values cut."""
    names = [column.name for column in answer.columns]
    rows = [[_cut(_text(value)) for value in row] for row in answer.rows]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    to_right = [_is_numeric(answer.rows, index) for index in range(len(names))]
    click.echo(_line(names, widths, to_right))
    click.echo("  ".join("─" * width for width in widths))
    for row in rows:
        click.echo(_line(row, widths, to_right))
    click.echo(f"({len(rows)} row{'' if len(rows) == 1 else 's'}{', more left out' if answer.truncated else ''})")


def print_structs(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> None:
    """Structs of one kind, a row each."""
    fields = msgspec.structs.fields(kind)
    columns = [Column(field.encode_name, "") for field in fields]
    print_table(QueryAnswer(columns, [[getattr(row, field.name) for field in fields] for row in rows]))


def print_csv(answer: QueryAnswer) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in answer.columns])
    writer.writerows([["" if value is None else _text(value) for value in row] for row in answer.rows])
    click.echo(out.getvalue(), nl=False)


def print_json_rows(answer: QueryAnswer) -> None:
    """One JSON object a row, so that other tools can take them line by line."""
    names = [column.name for column in answer.columns]
    for row in answer.rows:
        click.echo(msgspec.json.encode(dict(zip(names, row, strict=True))).decode())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, str | UUID) else msgspec.json.encode(value).decode()


def printable(text: str) -> str:
    """Without what would speak to a terminal. Tenants choose names, reasons and results."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def _cut(text: str) -> str:
    text = printable(text).replace("\n", "⏎")
    return text if len(text) <= WIDTH_MAX else text[: WIDTH_MAX - 1] + "…"


def _is_numeric(rows: Sequence[Sequence[Any]], index: int) -> bool:
    values = [row[index] for row in rows if row[index] is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _line(cells: Iterable[str], widths: Iterable[int], to_right: Iterable[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, to_right, strict=True)
    ]
    return "  ".join(padded).rstrip()
