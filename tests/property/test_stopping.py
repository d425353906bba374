"""Stop strings, over any split of any text: what is given is given for good, and is all of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire.stopping import StopSearch
from draftwire.types import StopRules
from edge_client.branch import Commit, Origin
from edge_client.output import Output

CORPUS = [
    "plain ascii, with a <stop> in it",
    "🚀👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈",  # skin tone, zero-width joiners, a variation selector
    "日本語、한국어、中文",
    "e\u0301 a\u0323\u0302 नि क्षि",  # combining marks
    "\ufffd is a character too",
    "\x00\n\t\u2028",
]


class Vocabulary:
    """A tokenizer whose token ids are places in a list of pieces."""

    fingerprint = b""
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    encode_chat = encode


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def ended(pieces: Sequence[bytes], stop: StopRules) -> int | None:
    """How many tokens the verifier commits until a stop string is complete."""
    search = StopSearch(stop.strings, stop.min_tokens)
    for count, piece in enumerate(pieces, start=1):
        if search.feed(piece):
            return count
    return None


def written(pieces: Sequence[bytes], rounds: Sequence[int], stop: StopRules) -> Output:
    """The output of these tokens, committed a round at a time; no delta is ever taken back."""
    output = Output(Vocabulary(pieces), stop)
    tokens, given = list(range(ended(pieces, stop) or len(pieces))), ""
    at = 0
    for size in [*rounds, len(tokens)]:
        commits = [Commit(token, Origin.CLOUD) for token in tokens[at : at + size]]
        given += output.take(commits, ()).text
        assert given == output.text
        at += size
    search = StopSearch(stop.strings, stop.min_tokens)
    for token in tokens:
        search.feed(pieces[token])
    given += output.end(search.decided if search.found is not None else len(tokens)).text
    assert given == output.text
    return output


@pytest.mark.parametrize("text", CORPUS)
@pytest.mark.parametrize("stop", [(), ("never there",), ("🚀👍🏽 👩‍👩‍👧x", "日本x", "e\u0301x")])
def test_deltas_joined_are_the_text_at_every_accept_boundary(
    text: str, stop: tuple[str, ...]
) -> None:
    data = text.encode()
    pieces = [data[at : at + 1] for at in range(len(data))]
    for boundary in range(len(pieces) + 1):
        output = written(pieces, [boundary], StopRules(strings=stop))
        assert output.text == text
        assert [token.id for token in output.tokens] == list(range(len(pieces)))


texts = st.text(alphabet="ab<é🚀", max_size=14)
strings = st.lists(st.text(alphabet="ab<é🚀", min_size=1, max_size=4), max_size=3)
cuts = st.lists(st.integers(0, 60), max_size=8)
rounds = st.lists(st.integers(0, 4), max_size=6)


@given(texts, cuts, strings, rounds)
def test_the_text_ends_before_the_first_stop_string_to_be_complete(
    text: str, cut: list[int], strings: list[str], sizes: list[int]
) -> None:
    data = text.encode()
    pieces = split(data, cut)
    output = written(pieces, sizes, StopRules(strings=strings))
    length = 0
    for piece in pieces:
        length += len(piece)
        places = [at for s in strings if (at := data[:length].find(s.encode())) >= 0]
        if places:
            break
    else:
        assert output.text == text
        return
    assert output.text == data[: min(places)].decode()
    kept = sum(map(len, (pieces[token.id] for token in output.tokens)))
    assert kept <= min(places)  # a token that the stop string cuts is not among them
    assert kept + len(pieces[len(output.tokens)]) > min(places)


@given(texts, cuts, strings, st.integers(0, 6))
def test_nothing_is_looked_for_in_the_first_tokens(
    text: str, cut: list[int], strings: list[str], least: int
) -> None:
    pieces = split(text.encode(), cut)
    search, later = StopSearch(strings, least), StopSearch(strings)
    for piece in pieces[:least]:
        assert not search.feed(piece)
    for piece in pieces[least:]:
        found = later.feed(piece)
        assert search.feed(piece) == found
        if found:
            break
    before = sum(map(len, pieces[:least]))
    assert (search.found is None) == (later.found is None)
    assert search.found is None or search.found == before + (later.found or 0)


@given(texts, cuts, strings)
def test_what_is_held_back_may_be_the_beginning_of_a_stop_string(
    text: str, cut: list[int], strings: list[str]
) -> None:
    """And nothing else is: text is given as soon as it is decided."""
    search, data = StopSearch(strings), b""
    for count, piece in enumerate(split(text.encode(), cut), start=1):
        data += piece
        if search.feed(piece):
            break
        begun = [
            size
            for s in strings
            for size in range(len(s.encode()))
            if data.endswith(s.encode()[:size])
        ]
        assert (search.decided == count) == (max(begun, default=0) == 0)
