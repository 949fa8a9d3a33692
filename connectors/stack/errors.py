"""Errors of the local stack, by remedy. The stack imports nothing of the server, so it has its own small tree."""

from __future__ import annotations


class StackError(Exception):
    """The stack cannot do what was asked; the message says what to change."""


class PartFailed(StackError):
    """A part died or did not become ready in time. Carries the tail of what it logged since it was started."""

    def __init__(self, name: str, reason: str, log_tail: str = "") -> None:
        tail = f"\n--- last lines of {name}'s log ---\n{log_tail}" if log_tail else ""
        super().__init__(f"{name}: {reason}{tail}")
        self.name = name
        self.log_tail = log_tail


class StackBusy(StackError):
    """Another process is bringing this state folder up or down. Wait for it, then try again."""


class ApacheKafkaUnavailable(StackError):
    """Java, Maven or its registry is missing. Install them, or let the stack fall back to tansu."""
