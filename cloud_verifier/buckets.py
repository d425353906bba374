"""Passes of fixed sizes: which size a pass fits, and what fills it up.

Padding is made of spans like any others, in a block that no session has. So a padded pass is just
a larger pass, and whatever runs passes runs padded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloud_verifier.attention import Span

MOST_TOKENS = 320
"""Tokens of the largest bucket: 32 sessions with 9 rows each, and some."""

LONGEST_SPAN = 64
"""Tokens of a span in a bucket; an attention kernel handles as many at once."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Passes of `tokens` tokens in spans of at most `longest`, and so in at most `tokens` spans."""

    tokens: int
    longest: int

    def holds(self, tokens: int, longest: int) -> bool:
        """Whether a pass of `tokens` tokens, spans up to `longest`, can be filled up to this."""
        return tokens <= self.tokens and longest <= self.longest


def buckets() -> tuple[Bucket, ...]:
    """All buckets, smallest first, those of lone tokens before the others."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, MOST_TOKENS + 1, 32)]
    alone = [Bucket(size, 1) for size in sizes if size <= LONGEST_SPAN]
    return tuple(alone + [Bucket(size, LONGEST_SPAN) for size in sizes if size > 1])


@dataclass(frozen=True, slots=True)
class Pass:
    """What `forward.Forward` is called with."""

    tokens: Sequence[int]
    spans: Sequence[Span]
    keep: Sequence[int]


def fill_up(
    tokens: Sequence[int],
    spans: Sequence[Span],
    keep: Sequence[int],
    bucket: Bucket,
    *,
    scratch_block: int,
    block_size: int,
) -> Pass:
    """The same pass filled up to `bucket`: rows of its logits beyond `keep`'s mean nothing.

    Padding spans lie in `scratch_block`, over each other: none of them is read by another.
    """
    size = min(bucket.longest, block_size)
    missing = bucket.tokens - len(tokens)
    padding = [
        Span(0, min(size, missing - done), (scratch_block,)) for done in range(0, missing, size)
    ]
    return Pass(
        tokens=[*tokens, *[0] * missing],
        spans=[*spans, *padding],
        keep=[*keep, *[0] * (bucket.tokens - len(keep))],
    )
