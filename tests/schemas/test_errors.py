"""The tree of errors: each says by its place what the one who catches it should do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from schemas import errors
from schemas.errors import (
    CommandRejected,
    EpochLost,
    FencepostError,
    InvalidSchedule,
    InvariantBroken,
    LeaseLost,
    LedgerMismatch,
    QueryRejected,
    TryAgain,
    Undecodable,
)

E = TypeVar("E", bound=FencepostError)


def below(kind: type[E]) -> Iterator[type[E]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from below(child)


def test_every_error_of_the_file_is_one_of_ours() -> None:
    ours = {FencepostError, *below(FencepostError)}
    defined = {thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert ours == defined


def test_every_error_says_what_to_do() -> None:
    assert all(kind.__doc__ for kind in below(FencepostError))


def test_the_remedies_exclude_each_other() -> None:
    """An `except` for one remedy must not catch an error with another."""
    remedies = {kind for kind in below(FencepostError) if kind.__base__ is FencepostError}
    assert remedies >= {TryAgain, EpochLost, LeaseLost, CommandRejected, InvariantBroken, LedgerMismatch}
    for kind in below(FencepostError):
        assert len([remedy for remedy in remedies if issubclass(kind, remedy)]) == 1


def test_the_codes_of_rejections_stay_what_they_are() -> None:
    """They are on the rejected topic and in HTTP answers, for programs."""
    kinds: list[type[CommandRejected]] = [CommandRejected, *below(CommandRejected)]
    codes = {kind.__name__: kind.code for kind in kinds}
    assert codes == {
        "CommandRejected": "invalid",
        "Undecodable": "undecodable",
        "InvalidSchedule": "invalid_schedule",
        "UnknownZone": "invalid_schedule",
        "JobUnknown": "job_unknown",
        "ForeignTenant": "tenant_forbidden",
        "JobConflict": "job_conflict",
        "TooManyPending": "too_many_pending",
        "RunUnknown": "run_unknown",
        "QueryRejected": "query_rejected",
    }


@pytest.mark.parametrize("kind", sorted(below(TryAgain), key=str))
def test_what_can_be_tried_again_says_when(kind: type[TryAgain]) -> None:
    assert kind("away").retry_after_s > 0
    assert kind("away", retry_after_s=7.5).retry_after_s == 7.5


def test_a_rejection_names_its_field_and_keeps_its_message() -> None:
    rejection = CommandRejected("too long", field="schedule.cron")
    assert (rejection.message, rejection.field, str(rejection)) == ("too long", "schedule.cron", "too long")
    assert Undecodable("three bytes").field is None
    assert QueryRejected("one SELECT only").field == "sql"


def test_a_schedule_s_error_names_the_remedy() -> None:
    error = InvalidSchedule("cron", "six fields", "use everySeconds")
    assert (error.field, error.message, error.remedy) == ("cron", "six fields; use everySeconds", "use everySeconds")
    assert InvalidSchedule("cron", "six fields").message == "six fields"


def test_a_lost_epoch_tells_the_partition() -> None:
    assert EpochLost(7).partition == 7
    assert "7" in str(EpochLost(7))


def test_a_mismatch_tells_every_problem() -> None:
    mismatch = LedgerMismatch(["P is 16", "schema is 3"])
    assert mismatch.problems == ("P is 16", "schema is 3")
    assert str(mismatch) == "P is 16; schema is 3"
