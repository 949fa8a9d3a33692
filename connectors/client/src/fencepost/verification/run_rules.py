"""The promises about a single run: each says of one more event whether it keeps the promise, after what was before.

A rule returns None where it has nothing to say, HOLDS where its promise is kept, and else what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fencepost.verification.events import RunEvent, instant_text
from fencepost.verification.run_life import EXPIRIES, LEASED, MAKINGS, RunLife, State

HOLDS = ""
RunRule = Callable[[RunLife, RunEvent], str | None]

_WAITS = {"run_leased", "run_held", "run_cancelled"}
_FOLLOWING: Mapping[State, set[str]] = {
    "unmade": {"run_scheduled", "run_held"},
    "waiting": {*_WAITS, "run_skipped", "run_scheduled"},
    "retrying": {*_WAITS, "run_scheduled"},
    "held": {"run_scheduled", "run_held", "run_skipped", "run_cancelled"},
    "leased": {
        *{"run_completed", "run_retried", "run_released", "run_dead", "run_held", "run_cancelled"},
        "run_cancel_requested",
    },
    "asked_to_end": {"run_completed", "run_cancelled"},
    "dead": {"run_scheduled", "run_held"},
    "completed": set(),
    "skipped": set(),
    "cancelled": {"run_scheduled", "run_held"},
}
# Why a run that waits is told of once more: its job was edited, its zone's rules have changed, or it is made up for.
_TOLD_AGAIN = frozenset({"edited", "zone rules", "catch-up spread"})


def versions_are_contiguous(life: RunLife, event: RunEvent) -> str | None:
    """A run's events are numbered 1, 2, 3 …: none is missing, and no two differ under one number."""
    if event.type in MAKINGS and life.state in ("unmade", "cancelled"):
        # The number that a run of an edited job begins with is odd, and beyond any that its id can have had before.
        fresh = event.version == 1 or (event.version % 2 == 1 and event.version > life.version)
        return HOLDS if fresh else f"begins with version {event.version}"
    if event.version == life.version + 1:
        return HOLDS
    return f"version {event.version} after {life.version or 'nothing'}"


def lives_are_legal(life: RunLife, event: RunEvent) -> str | None:
    """Each event follows one that it may follow: no second lease while one lives, and nothing after the end."""
    before = life.state
    if event.type not in _FOLLOWING[before]:
        return f"{event.type} while it is {before}"
    if before == "cancelled" and life.leases:
        return f"{event.type} after it was leased and cancelled"
    if before == "dead" and event.reason != "replayed":
        return f"{event.type} after it died, and nobody has replayed it"
    if before in ("waiting", "retrying") and event.type == "run_scheduled" and event.reason not in _TOLD_AGAIN:
        return f"it waits already, and is scheduled again without a reason ({event.reason})"
    if before == "leased" and event.type == "run_held" and event.token is None:
        return "put aside while it is leased"
    if event.type == "run_skipped" and not event.reason:
        return "skipped without a reason"
    replaced = before == "asked_to_end" and life.events and life.events[-1].reason == "replaced"
    if event.type == "run_completed" and replaced:
        return "completed after another run of its job has replaced it"
    return HOLDS


def completed_at_most_once(life: RunLife, event: RunEvent) -> str | None:
    """One accepted completion a run."""
    if event.type != "run_completed":
        return None
    return "completed more than once" if life.was_completed else HOLDS


def nothing_is_early(life: RunLife, event: RunEvent) -> str | None:
    """No lease before the run is due, nor before the nominal time of its occurrence."""
    if event.type != "run_leased":
        return None
    if event.due_at is None:
        return f"leased at {instant_text(event.at)}, and nothing tells when it was due"
    wanted = max(each for each in (event.due_at, life.due_at, life.nominal) if each is not None)
    return HOLDS if event.at >= wanted else f"leased at {instant_text(event.at)}, due {instant_text(wanted)}"


def leases_end_no_sooner_than_promised(life: RunLife, event: RunEvent) -> str | None:
    """An attempt is given up for an expired lease only after that lease's end."""
    if life.lease is None or life.lease.expires_at is None or event.reason not in EXPIRIES:
        return None
    if event.at >= life.lease.expires_at:
        return HOLDS
    return f"given up at {instant_text(event.at)}, leased until {instant_text(life.lease.expires_at)}"


def tokens_only_grow(life: RunLife, event: RunEvent) -> str | None:
    """Each lease of a run has a larger token than the one before."""
    if event.type != "run_leased":
        return None
    if life.token is None or (event.token or 0) > life.token:
        return HOLDS
    return f"lease token {event.token} after {life.token}"


def ends_name_their_lease(life: RunLife, event: RunEvent) -> str | None:
    """What ends a lease names its token, and its worker: nobody ends another one's."""
    if life.lease is None or event.type == "run_leased" or event.token is None:
        return None
    if event.token != life.lease.token:
        return f"{event.type} under token {event.token}, leased under {life.lease.token}"
    if event.worker is not None and life.lease.worker is not None and event.worker != life.lease.worker:
        return f"{event.type} by {event.worker}, leased by {life.lease.worker}"
    return HOLDS


def nothing_starts_again_unprovoked(life: RunLife, event: RunEvent) -> str | None:
    """A run is started again only after its attempt failed, its lease expired or was given back, or it was replayed."""
    if event.type != "run_leased" or not life.leases:
        return None
    return HOLDS if life.state not in LEASED and life.restart else "started again, and nothing has ended the attempt"


RUN_RULES: Mapping[str, RunRule] = {
    rule.__name__: rule
    for rule in (
        versions_are_contiguous,
        lives_are_legal,
        completed_at_most_once,
        nothing_is_early,
        leases_end_no_sooner_than_promised,
        tokens_only_grow,
        ends_name_their_lease,
        nothing_starts_again_unprovoked,
    )
}
