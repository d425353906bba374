"""What an app gets back from a translator: what to show, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationUpdate:
    """What to show now for the line that is being spoken, in place of what was shown of it.

    `text` is the translation without the words held back, as far as it is there; once `settled`,
    `translation` is all of what the target made of `source`, in tokens `token_ids` (the end token
    included). After a `final` one the next line begins. `passes` of the target were spent since
    the last settled one, those for captions superseded meanwhile included; `lag_ms` is how long
    ago the oldest caption came that had not been translated until now.
    """

    source: str
    text: str
    translation: str
    token_ids: tuple[int, ...]
    settled: bool
    final: bool
    passes: int
    lag_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationReport:
    """How a translation went so far.

    Of `updates` (captions given), `superseded` were left for a newer one. `words` and `tokens`
    count the committed `lines` and all settled translations, `taken_back` the words that were shown
    and then replaced. `lossy`: a bias held words back from what the target would have written.
    """

    updates: int
    superseded: int
    lines: int
    words: int
    taken_back: int
    passes: int
    tokens: int
    lags_ms: Sequence[float]
    lossy: bool

    @property
    def flicker(self) -> float:
        """Words taken back per word committed."""
        return self.taken_back / max(1, self.words)

    @property
    def passes_per_update(self) -> float:
        """Passes of the target per translation that settled."""
        return self.passes / max(1, len(self.lags_ms))

    @property
    def lag_ms(self) -> float:
        """Mean time from a caption to its translation; 0 without any."""
        return mean(self.lags_ms) if self.lags_ms else 0.0

    def line(self) -> str:
        """The report in a line."""
        return (
            f"{self.lines} lines, {self.updates} updates, {self.superseded} superseded · "
            f"lag {self.lag_ms:.0f} ms, at most {max(self.lags_ms, default=0):.0f} · "
            f"flicker {self.flicker:.2f} words a word · "
            f"{self.passes_per_update:.1f} passes an update"
            f"{' · stability: lossy' if self.lossy else ''}"
        )
