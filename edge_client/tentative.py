"""Text that is shown before it is final: what changes in it, and what the changes add up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from draftwire.types import common_prefix
from edge_client.results import Delta, Kind, Token


@dataclass(slots=True)
class Shown:
    """A text as its deltas leave it: what is `final`, what is `tentative` after that; their ids."""

    final: str = ""
    tentative: str = ""
    token_ids: list[int] = field(default_factory=list)
    tentative_token_ids: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return self.final + self.tentative

    def apply(self, delta: Delta) -> None:
        """Take a delta in."""
        ids = _ids(delta.tokens)
        match delta.kind:
            case Kind.COMMITTED:
                self.final += delta.text
                self.tentative = self.tentative[len(delta.text) :]
                self.token_ids += ids
                del self.tentative_token_ids[: len(ids)]
            case Kind.RETRACTED:
                self.tentative = self.tentative.removesuffix(delta.text)
                del self.tentative_token_ids[len(self.tentative_token_ids) - len(ids) :]
            case Kind.DRAFTED | Kind.UNVERIFIED:
                self.tentative += delta.text
                self.tentative_token_ids += ids


def reduce(deltas: Iterable[Delta]) -> str:
    """The text that these deltas, from the first one on, add up to."""
    shown = Shown()
    for delta in deltas:
        shown.apply(delta)
    return shown.text


class Tentative:
    """The tokens shown beyond the final text, and what to say when they change.

    What is final was shown before or follows what is left: drafts that it contradicts are
    retracted first. `retracted` counts the tokens taken back.
    """

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.retracted = 0

    def change(self, given: Delta, tail: Sequence[Token], kind: Kind) -> list[Delta]:
        """The deltas after which `given` is final and `tail` is shown; news in it is of `kind`."""
        wanted = [*given.tokens, *tail]
        kept = common_prefix(_ids(wanted), _ids(self.tokens))
        dead, settled = self.tokens[kept:], len(given.tokens)
        self.retracted += len(dead)
        self.tokens = list(tail)
        deltas = [
            _delta(dead, Kind.RETRACTED),
            given,
            _delta(wanted[max(kept, settled) :], kind),
        ]
        return [delta for delta in deltas if delta.tokens or delta.text]


def _ids(tokens: Sequence[Token]) -> list[int]:
    return [token.id for token in tokens]


def _delta(tokens: Sequence[Token], kind: Kind) -> Delta:
    return Delta("".join(token.text for token in tokens), tuple(tokens), kind)
