"""How commands fail: in one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
import psycopg

from connectors.stack import StackError
from schemas.errors import FencepostError

Command = Callable[..., Any]


def refusals(command: Command) -> Command:
    """Say what is wrong in one line, with exit code 1, instead of a traceback."""

    @wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except (FencepostError, StackError, psycopg.Error, OSError) as error:
            raise click.ClickException(str(error).strip()) from error

    return checked
