"""What came of a soak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from bench._soak_devices import Outcomes
from bench._vitals import Vitals

MOST_SPREAD, MOST_FILES = 0.03, 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A process over time: (seconds, bytes of resident memory, open descriptors), and how far
    apart the most and the least were in the end, memory as a share.
    """

    samples: list[tuple[float, int, int]]
    memory_spread: float
    files_spread: float

    @classmethod
    def of(cls, vitals: Vitals, since_s: float, until_s: float) -> Self:
        """What was seen, the end being from `since_s` to `until_s`."""
        return cls(
            samples=vitals.samples,
            memory_spread=vitals.memory_spread(since_s, until_s),
            files_spread=vitals.files_spread(since_s, until_s),
        )

    def __str__(self) -> str:
        sizes, files = [s[1] / 1e6 for s in self.samples], [s[2] for s in self.samples]
        return (
            f"resident memory {sizes[0]:.0f} MB at first, {min(sizes):.0f} to {max(sizes):.0f}, "
            f"{sizes[-1]:.0f} at last, {self.memory_spread:.2%} apart in the second half; "
            f"descriptors {files[0]}, {min(files)} to {max(files)}, {files[-1]}, "
            f"{self.files_spread:g} apart"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`left` is what is still there after everyone has gone; `metrics` are the first verifier's."""

    target: str
    sessions: int
    seconds: float
    outcomes: Outcomes
    sides: dict[str, Side]
    metrics: dict[str, float]
    left: dict[str, float]

    def faults(self, most_spread: float | None, most_files: float | None) -> list[str]:
        """What is not as it should be; with None memory, or descriptors, may move."""
        outcomes = self.outcomes
        found = [*outcomes.differences, *outcomes.errors]
        found += [f"{name} is {value:g} at the end" for name, value in self.left.items() if value]
        for name, side in self.sides.items():
            if most_spread is not None and side.memory_spread > most_spread:
                found.append(f"resident memory of the {name} moved by {side.memory_spread:.1%}")
            if most_files is not None and side.files_spread > most_files:
                found.append(f"descriptors of the {name} moved by {side.files_spread:g}")
        if outcomes.ends["finish"] < self.sessions:
            found.append(f"only {outcomes.ends['finish']} texts: nothing is shown")
        return found

    def __str__(self) -> str:
        outcomes = self.outcomes
        sides = "\n".join(f"{name}: {side}" for name, side in self.sides.items())
        return (
            f"{self.target}, {self.sessions} devices, {self.seconds:.0f} s: "
            f"{outcomes.tokens} tokens, {outcomes.accepted} of {outcomes.drafted} drafts held\n"
            f"generations: {', '.join(f'{n} {way}' for way, n in outcomes.ends.items())}\n"
            f"faults: {', '.join(f'{n} {kind}' for kind, n in outcomes.disturbed.items())}; "
            f"{outcomes.reopened} generations went on on another stream, "
            f"{self.metrics.get('num_preemptions_total', 0):.0f} preemptions, "
            f"{self.metrics.get('kv_block_evictions_total', 0):.0f} cached blocks given away\n"
            f"{len(outcomes.differences)} differences, {outcomes.ties} ties excused, "
            f"{len(outcomes.errors)} errors\n{sides}"
        )
