"""What is broken when: drawn from a seed before anything starts, so that the same seed and options break the same.

Kinds come as from a shuffled deck, so that a few minutes see all of them. Pure: nothing is broken here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FIRST_FAULT_S = 8.0
GAP_S = (3.0, 9.0)  # from one fault's begin to the next one's, where its target is free
REST_S = 8.0  # of a target between two faults
AT_ONCE = 3


class PlannedFault(NamedTuple):
    """kind: a method of `faults.Faults`. targets: what it hurts. amount: of delay or skew in seconds, or how often."""

    at_s: float
    kind: str
    targets: tuple[str, ...]
    length_s: float
    amount: float = 0.0

    @property
    def until_s(self) -> float:
        return self.at_s + self.length_s

    def __str__(self) -> str:
        amount = f" {self.amount:.3g}" if self.amount else ""
        return f"{self.kind.replace('_', ' ')}{amount}: {', '.join(self.targets)}, for {self.length_s:.1f} s"


@dataclass(frozen=True)
class Targets:
    """What there is to hurt, by name. state_keepers: processes with a state folder. extras: owners who come and go."""

    roles: Sequence[str]
    servers: Sequence[str]
    workers: Sequence[str]
    links: Sequence[str]
    state_keepers: Sequence[str]
    extras: Sequence[str]
    can_skew: bool = True

    def all(self) -> tuple[str, ...]:
        return (*self.roles, *self.servers, *self.workers, *self.links, *self.extras)


class Card(NamedTuple):
    """A kind of fault with how long it lasts, and of what amount it is."""

    kind: str
    choose: Callable[[Targets, random.Random], tuple[str, ...]]
    length_s: tuple[float, float]
    amount: tuple[float, float] = (0.0, 0.0)


def _one(pool: str) -> Callable[[Targets, random.Random], tuple[str, ...]]:
    return lambda targets, chance: (chance.choice(getattr(targets, pool)),)


def _every_role(targets: Targets, _: random.Random) -> tuple[str, ...]:
    return tuple(targets.roles)


# Leases last 5 s and a group's session 6 s: a freeze is longer than both. What is down for long is so for 5 s.
DECK: Mapping[str, Card] = {
    "a role killed": Card("kill", _one("roles"), (0.2, 5)),
    "a server killed": Card("kill", _one("servers"), (0.2, 5)),
    "a worker killed": Card("kill", _one("workers"), (0.2, 5)),
    "a role frozen": Card("freeze", _one("roles"), (7, 25)),
    "a server frozen": Card("freeze", _one("servers"), (3, 15)),
    "a worker frozen": Card("freeze", _one("workers"), (7, 20)),
    "a role restarted": Card("restart", _one("roles"), (0, 1)),
    "a worker restarted": Card("restart", _one("workers"), (0, 1)),
    "a link cut": Card("cut", _one("links"), (1, 12)),
    "a link silent": Card("silence", _one("links"), (2, 20)),
    "a link slow": Card("delay", _one("links"), (5, 20), (0.02, 0.4)),
    "no heartbeats": Card("drop_heartbeats", _one("workers"), (7, 15)),
    "a full disk": Card("fill_disk", _one("state_keepers"), (3, 12)),
    "a wrong clock": Card("skew_clock", _one("roles"), (8, 25), (-40, 40)),
    "a rebalance storm": Card("storm", lambda targets, _: tuple(targets.extras), (15, 25)),
    "a deploy": Card("deploy", _every_role, (15, 25)),
    "everything killed": Card(
        "kill", lambda targets, _: (*targets.servers, *targets.roles, *targets.workers), (0.2, 3)
    ),
}


def plan_faults(seed: int, hurts_s: float, targets: Targets, only: str = "") -> list[PlannedFault]:
    """All faults of a run, in the order in which they begin; the last one is over by hurts_s.

    only: a text in the names of the cards that are played. Raises ValueError when none has it.
    """
    chance, planned = random.Random(f"faults {seed}"), list[PlannedFault]()
    at_s, cards = FIRST_FAULT_S, _cards(chance, _deck(targets, only))
    while True:
        card = next(cards)
        hurt, length_s = card.choose(targets, chance), chance.uniform(*card.length_s)
        amount = chance.uniform(*card.amount)
        at_s = _free_at(at_s, hurt, planned)
        if at_s + length_s > hurts_s:
            return planned
        planned.append(PlannedFault(at_s, card.kind, hurt, length_s, amount))
        at_s += chance.uniform(*GAP_S)


def _deck(targets: Targets, only: str) -> list[Card]:
    named = [card for name, card in DECK.items() if only in name]
    deck = [card for card in named if targets.can_skew or card.kind != "skew_clock"]
    if not deck:
        raise ValueError(f"no fault is called {only!r}; there are: {', '.join(DECK)}")
    return deck


def _cards(chance: random.Random, deck: Sequence[Card]) -> Iterator[Card]:
    while True:
        yield from chance.sample(deck, len(deck))


def _free_at(at_s: float, hurt: Sequence[str], planned: Sequence[PlannedFault]) -> float:
    """The first instant from at_s on at which none of these is hurt, or was a moment ago, and few others are."""
    clashes = [each.until_s + REST_S for each in planned if set(each.targets) & set(hurt)]
    at_s = max([at_s, *clashes])
    while len(under_way := [each.until_s for each in planned if each.at_s <= at_s < each.until_s]) >= AT_ONCE:
        at_s = min(under_way)
    return at_s
