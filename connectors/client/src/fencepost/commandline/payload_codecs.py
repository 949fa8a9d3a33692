"""A codec of payloads named on the command line: `module:attribute`, of a module of the user's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

import click

from fencepost.sealing import PayloadCodec


class CodecParam(click.ParamType):
    """The codec itself, or what makes one when it is called without arguments."""

    name = "codec"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> PayloadCodec:
        if _is_codec(value):
            return value  # type: ignore[return-value]
        module, _, attribute = str(value).partition(":")
        if not (module and attribute):
            self.fail(f"{value!r} is not MODULE:ATTRIBUTE, such as mail.sealing:codec", param, ctx)
        try:
            found = _imported(module, attribute)
            codec = found if _is_codec(found) else found()
        except Exception as error:  # whatever a module of the user's may raise
            self.fail(f"{value} gives no codec: {type(error).__name__}: {error}", param, ctx)
        if not _is_codec(codec):
            self.fail(f"{value} is no codec: it needs `encrypt` and `decrypt`", param, ctx)
        return codec  # type: ignore[no-any-return]


def _imported(module: str, attribute: str) -> Any:
    """As `python -m` would find the module: in the folder it is called in, too."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return attrgetter(attribute)(import_module(module))


def _is_codec(value: object) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("encrypt", "decrypt"))


def codec_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--payload-codec`, which the command gets as payload_codec. what: it does with it, for the help."""
    return click.option(
        "--payload-codec",
        type=CodecParam(),
        envvar="FENCEPOST_PAYLOAD_CODEC",
        show_envvar=True,
        metavar="MODULE:ATTRIBUTE",
        help=f"{what} An object with `encrypt` and `decrypt`, or what makes one; MODULE may be in this folder.",
    )
