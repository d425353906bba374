"""What the benchmark over networks runs: cells, the settings compared in each, and its three forms.

A cell is a network, a drafter and a temperature. In every repetition all settings of a cell decode
the same prompt one after the other, each time in another order, so that what drifts on the machine
falls on all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from draftwire.testing.wire import PROFILES
from draftwire.types import SamplingParams
from edge_client.plan import Plan

T = TypeVar("T")

ADAPTIVE, CLOUD = "controller", "cloud-alone"
CHANGING = "changing"
"""The network that changes: see `CHANGES`."""

RUN_ON = 128
FIXED: Mapping[str, Plan] = {
    CLOUD: Plan.cloud_alone(RUN_ON),
    **{f"waiting {k}": Plan.waiting(k) for k in (1, 2, 4, 8, 16)},
    **{f"pipelined {w}/{c}": Plan.flowing(w, c) for w, c in ((8, 2), (24, 2), (48, 4))},
    **{f"run-on {w}/{c}": Plan.flowing(w, c, RUN_ON) for w, c in ((8, 2), (24, 2))},
}
"""The fixed settings: rounds of K drafts; window/chunk of drafts that flow, also with run-on."""

PROMPT_NAMES = ("bicycle", "letter", "german", "python", "colours")


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of the network when that share of the text is there."""

    share: float
    profile: str
    stall_s: float = 0.0


CHANGES = (Change(0.0, "wifi"), Change(1 / 3, "lte"), Change(2 / 3, "wifi", stall_s=3.0))


@dataclass(frozen=True, slots=True)
class Cell:
    """A network, a drafter by name and a temperature. Its name is the key of the record."""

    network: str
    drafter: str
    temperature: float = 0.0

    def __str__(self) -> str:
        sampling = f"T={self.temperature:g}" if self.temperature else "greedy"
        return f"{self.network}, {self.drafter}, {sampling}"

    @property
    def changes(self) -> Sequence[Change]:
        """What the network is like, from which share of the text on."""
        return CHANGES if self.network == CHANGING else (Change(0.0, self.network),)

    @property
    def rtt_ms(self) -> float | None:
        """Its round trip; None where it changes."""
        return None if self.network == CHANGING else PROFILES[self.network].rtt_ms

    @property
    def sampling(self) -> SamplingParams:
        """How its texts are sampled."""
        return SamplingParams(temperature=self.temperature, seed=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How much is run. `alone`: also what takes no network."""

    cells: Sequence[Cell]
    settings: Sequence[str]
    repetitions: int
    tokens: int
    alone: bool

    def order(self, repetition: int) -> list[tuple[Cell, list[str]]]:
        """Cells and their settings in the order of a repetition: rotated, and back and forth."""
        cells, settings = list(self.cells), list(self.settings)
        if repetition % 2:
            cells.reverse()
            settings.reverse()
        return [
            (cell, _rotated(settings, repetition * 4 + index * 3))
            for index, cell in enumerate(_rotated(cells, repetition))
        ]


Q4, GOOD, POOR = "Q4_1", "α 0.8", "α 0.6"
"""The draft model as it is, and spoilt to about these acceptance rates (greedy)."""

_NETWORKS = (*PROFILES, CHANGING)
QUICK = Form(
    cells=[Cell("lan", Q4), Cell("lte", Q4), Cell("lte", POOR)],
    settings=[CLOUD, "waiting 4", "waiting 8", "pipelined 24/2", "run-on 24/2", ADAPTIVE],
    repetitions=2,
    tokens=64,
    alone=False,
)
DEFAULT = Form(
    cells=[
        *(Cell(network, Q4) for network in _NETWORKS),
        *(Cell(network, drafter) for network in ("lan", "lte") for drafter in (GOOD, POOR)),
        *(Cell("lte", drafter, 0.8) for drafter in (Q4, POOR)),
    ],
    settings=[*FIXED, ADAPTIVE],
    repetitions=3,
    tokens=80,
    alone=True,
)
EVERYTHING = [Cell(*cell) for cell in itertools.product(_NETWORKS, (Q4, GOOD, POOR), (0.0, 0.8))]
"""All cells, for `--cells`."""


def _rotated(items: Sequence[T], by: int) -> list[T]:
    by %= len(items)
    return [*items[by:], *items[:by]]
