# Generated from schemas/errors.py by connectors/client/generate_copies.py (make copies): change it there.
"""What the rules of schedules raise; what the client itself raises is in fencepost/errors.py."""

from __future__ import annotations

from fencepost.errors import FencepostError


class CommandRejected(FencepostError):
    """Reject the command: it can never succeed, whoever retries it.

    field: the offending field by its JSON name, dotted for nested ones (`schedule.cron`), or None.
    """

    code = "invalid"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidSchedule(CommandRejected):
    """A schedule that cannot be right; the message names the remedy."""

    code = "invalid_schedule"

    def __init__(self, field: str, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message, field=field)
        self.remedy = remedy


class UnknownZone(InvalidSchedule):
    """Not a name on the allow-list of IANA zones that every node shares."""


class InvariantBroken(FencepostError):
    """Crash: the state contradicts itself, and going on would spread the damage."""
