"""Values and options that several commands take."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
import msgspec

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
key_option = click.option("--idempotency-key", metavar="KEY", help="The same key has the effect once.")


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
