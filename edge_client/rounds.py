"""Rounds that wait for their verdict: how many tokens to draft.

A round of K drafts costs F + cK: F is the round trip, the wait for a pass and the pass itself, c
what one more draft adds on both sides. It gives E(K) = 1 + α₁ + α₁α₂ + … tokens, αᵢ being the
chance that draft i holds, and the target's own token is the 1. The cost of a token
L(K) = (F + cK) / E(K) falls and then rises. So no search is needed: draft on while the next token
pays, which is while P·(F + cK) > c·E(K), with P the chance that all drafts so far and the next
one hold. (That is L(K + 1) < L(K), multiplied out.) The best K grows with log F, not with F.
"""

from __future__ import annotations

from collections.abc import Sequence


def expected_tokens(chances: Sequence[float]) -> float:
    """E(K): tokens of a round whose draft i holds with `chances[i]`, the target's own included."""
    total = held = 1.0
    for chance in chances:
        held *= chance
        total += held
    return total


def pays(chances: Sequence[float], following: float, fixed: float, each: float) -> bool:
    """Whether one more draft, holding with chance `following`, lowers the cost of a token."""
    held = following
    for chance in chances:
        held *= chance
    return held * (fixed + each * len(chances)) > each * expected_tokens(chances)


def best_length(rate: float, fixed: float, each: float, longest: int) -> int:
    """K that minimises the cost of a token at a constant acceptance rate."""
    held = total = 1.0
    for length in range(longest):
        held *= rate
        if held * (fixed + each * length) <= each * total:
            return length
        total += held
    return longest


def time_per_token(length: int, rate: float, fixed: float, each: float) -> float:
    """Expected cost of a token in rounds of `length` drafts, in the unit of `fixed` and `each`."""
    return (fixed + each * length) / expected_tokens([rate] * length)
