"""How a command reaches the server. The clients are loaded by the first command that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import click

if TYPE_CHECKING:
    from fencepost.client import FencepostClient
    from fencepost.sync_client import SyncClient


class Connection(NamedTuple):
    """What --url and --token, or the environment, say."""

    url: str | None
    token: str | None

    def client(self) -> SyncClient:
        """For one command: its calls are repeated for a few seconds when the server is away."""
        from fencepost.sync_client import SyncClient

        url, token = self._given()
        return SyncClient(url, token, retry_for_s=5)

    def async_client(self) -> FencepostClient:
        from fencepost.client import FencepostClient

        url, token = self._given()
        return FencepostClient(url, token)

    def _given(self) -> tuple[str, str]:
        if not self.url:
            raise click.UsageError("Where is the server? Give --url before the command, or set FENCEPOST_URL.")
        if not self.token:
            raise click.UsageError("Who are you? Give --token before the command, or set FENCEPOST_TOKEN.")
        return self.url, self.token


class UuidParam(click.ParamType):
    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        try:
            return value if isinstance(value, UUID) else UUID(str(value))
        except ValueError:
            self.fail(f"{value!r} is no UUID", param, ctx)


UUID_PARAM = UuidParam()
pass_connection = click.make_pass_decorator(Connection)
