"""Values and options that several commands take."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
key_option = click.option("--idempotency-key", metavar="KEY", help="The same key has the effect once.")

_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


class InstantParam(click.ParamType):
    name = "instant"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            instant = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no instant such as 2026-03-01T09:00:00Z", param, ctx)
        if instant.tzinfo is None:
            self.fail(f"{value!r} needs an offset: which 09:00 is meant? Add Z or +01:00", param, ctx)
        return instant


class JsonParam(click.ParamType):
    name = "json"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return msgspec.json.decode(str(value))
        except (msgspec.DecodeError, UnicodeError) as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)


class SpanParam(click.ParamType):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"([0-9]{1,6})([smhdw])", str(value))
        if not found or not int(found[1]):
            self.fail(f"{value!r} is no time such as 90s, 15m, 24h, 7d or 2w", param, ctx)
        return int(found[1]) * _UNITS[found[2]]
