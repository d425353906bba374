"""A generation's tokens and text, as they become final."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

from draftwire.stopping import StopSearch
from draftwire.types import StopRules, TokenLogprobs
from edge_client.branch import Commit, Origin
from edge_client.drafter import Tokenizer
from edge_client.results import Delta, Token
from edge_client.text import TextStream


class Output:
    """Holds back what may yet be taken back: tokens that may belong to a stop string.

    `tokens` and `text` are what was given so far, and stay. The verifier says where the text
    ends; the search here only tells what could be part of a stop string, and where in its token
    one begins.
    """

    def __init__(self, tokenizer: Tokenizer, stop: StopRules) -> None:
        """The output of a generation with these stop rules."""
        self.tokens: list[Token] = []
        self.text = ""
        self._piece = tokenizer.piece
        self._decoder = TextStream(tokenizer)
        self._search = StopSearch(stop.strings, stop.min_tokens) if stop.strings else None
        self._waiting: deque[tuple[Commit, TokenLogprobs | None]] = deque()

    @property
    def committed(self) -> int:
        """Tokens taken, given or not."""
        return len(self.tokens) + len(self._waiting)

    def take(self, commits: Sequence[Commit], logprobs: Sequence[TokenLogprobs]) -> Delta:
        """Take committed tokens in, with their log-probabilities if any; gives what is final."""
        self._waiting += zip_longest(commits, logprobs)
        decided = self.committed
        if self._search is not None:
            for token, _ in commits:
                if self._search.found is None:
                    self._search.feed(self._piece(token))
            decided = self._search.decided
        return self._give(decided)

    def preview(self, drafts: Sequence[int]) -> list[Token]:
        """Tokens that would be given next if these drafts were committed now."""
        if not drafts:
            return []
        coming = [commit for commit, _ in self._waiting]
        coming += [Commit(token, Origin.DRAFT) for token in drafts]
        decided = len(self.tokens) + len(coming)
        if self._search is not None:
            search = self._search.fork()
            for token in drafts:
                if search.found is None:
                    search.feed(self._piece(token))
            decided = search.decided
        decoder = self._decoder.fork()
        return [
            Token(token, decoder.feed([token]), origin)
            for token, origin in coming[: decided - len(self.tokens)]
        ]

    def end(self, retained: int, *, told: bool = True) -> Delta:
        """The end of an output of `retained` tokens: what was held back, and the rest of the text.

        Unless `told` of its end by the verifier, it may hold a stop string that ends it before.
        The rest is what stands before a stop string in the token where it begins, and U+FFFD if the
        text stops inside a character.
        """
        if not told and self._search is not None and self._search.found is not None:
            retained = min(retained, self._search.decided)
        given = self._give(retained)
        rest = ""
        if self._waiting and self._search is not None and self._search.decided == retained:
            (token, _), _ = self._waiting[0]
            rest = self._decoder.feed_bytes(self._piece(token)[: self._search.cut])
        rest += self._decoder.flush()
        self.text += rest
        self._waiting.clear()
        return Delta(given.text + rest, given.tokens)

    def _give(self, count: int) -> Delta:
        """All tokens before the `count`-th that have not been given."""
        news = []
        for _ in range(count - len(self.tokens)):
            (token, origin), logprobs = self._waiting.popleft()
            news.append(Token(token, self._decoder.feed([token]), origin, logprobs))
        self.tokens += news
        delta = Delta("".join(token.text for token in news), tuple(news))
        self.text += delta.text
        return delta
