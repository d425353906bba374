"""What goes wrong, to whom and when: a function of a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench._known_text import KnownText
from draftwire.testing.link import LinkProfile
from draftwire.types import common_prefix

LENGTHS = (0, 1, 2, 3, 5, 8, None)  # K; None adapts
PER_ROUND = 10
APPS = 3

FAULTS = {
    "cut": 20,  # the connection is reset
    "outage": 10,  # and so is every new one, for a while
    "stall": 12,  # nothing is delivered for a while
    "deaf": 6,  # nothing is delivered to the device
    "mute": 6,  # nothing from it
    "trickle": 8,  # a reader as slow as a network of a few kbit/s makes it
    "freeze app": 8,  # SIGSTOP, later SIGCONT
    "kill app": 8,  # SIGKILL; another goes on from what was written down
    "forget app": 4,  # SIGKILL; another begins anew
    "freeze verifier": 4,
    "kill verifier": 6,  # SIGKILL, and another life at the same address
}
SLOW_READERS = 0.15  # of generations: they rest after every delta


@dataclass(frozen=True, slots=True)
class Fault:
    """When `at` tokens of a generation are there, this happens; some kinds last for seconds."""

    kind: str
    at: int
    seconds: float


@dataclass(slots=True)
class Generation:
    """A text to generate over a link of its own, and what befalls it.

    `got` is what its app has written down so far, `streams` how many its last process took.
    """

    number: int
    text: KnownText
    num_draft_tokens: int | None
    profile: LinkProfile
    pause_s: float
    faults: list[Fault]
    got: list[int] = field(default_factory=list)
    ended: bool = False
    streams: int = 0
    befell: list[Fault] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        """Whether tokens are still to come."""
        return not self.ended and len(self.got) < len(self.text.text)

    def due(self) -> list[Fault]:
        """The faults whose time has come; each is told once."""
        due = [fault for fault in self.faults if fault.at <= len(self.got)]
        self.faults = self.faults[len(due) :]
        return due

    def __str__(self) -> str:
        befell = ", ".join(f"{fault.kind} at {fault.at}" for fault in self.befell)
        k = "adaptive" if self.num_draft_tokens is None else self.num_draft_tokens
        return f"generation {self.number} (K {k}, {self.profile.rtt_ms:.0f} ms; {befell})"


def plan(
    seed: int, texts: Sequence[KnownText], *, generations: int = PER_ROUND, apps: int = APPS
) -> list[list[Generation]]:
    """A round: the generations of each app."""
    draw = random.Random(seed)
    shares: list[list[Generation]] = [[] for _ in range(apps)]
    for number in range(generations):
        shares[number % apps].append(_generation(draw, number, draw.choice(texts)))
    return [share for share in shares if share]


def _generation(draw: random.Random, number: int, text: KnownText) -> Generation:
    kinds = draw.choices(list(FAULTS), list(FAULTS.values()), k=draw.randint(1, 3))
    faults = [
        Fault(kind, draw.randrange(len(text.text)), round(draw.uniform(0.05, 0.4), 3))
        for kind in kinds
    ]
    return Generation(
        number=number,
        text=text,
        num_draft_tokens=draw.choice(LENGTHS),
        profile=LinkProfile(rtt_ms=draw.uniform(2, 40), jitter_ms=draw.choice((0.0, 2.0))),
        pause_s=0.01 if draw.random() < SLOW_READERS else 0.0,
        faults=sorted(faults, key=lambda fault: fault.at),
    )


def difference(expected: Sequence[int], got: Sequence[int]) -> str | None:
    """How a text differs from what it should be, told by the first token that does."""
    place = common_prefix(got, expected)
    if place == len(got) == len(expected):
        return None
    if place in (len(got), len(expected)):
        return f"{len(got)} tokens instead of {len(expected)}"
    rest = list(got[place:])
    for shift in range(1, len(expected)):
        if rest == list(expected[place + shift :][: len(rest)]):
            return f"{shift} lost before token {place}"
        if shift <= place and rest == list(expected[place - shift :][: len(rest)]):
            return f"{shift} repeated before token {place}"
    return f"token {place} is {got[place]} instead of {expected[place]}"
