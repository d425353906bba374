"""What a grammar allows is a function of the output before a position, however it came about."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance")

from draftwire.grammar import GrammarCompiler, Matcher
from draftwire.types import Grammar

LETTERS = "abcd"
PIECES = [b"", *(a.encode() for a in LETTERS), b"ab", b"abc", b"cc", b"da", b"", b"a"]
END, STOP = 0, 9
REGEXES = ["(ab|c)+d{1,2}", "a?b?c?d?a", "(abc|abd|cc)(da)*", "[abc]{2,4}"]
COMPILER = GrammarCompiler(PIECES)

outputs = st.lists(st.integers(0, len(PIECES) - 1), max_size=6)


def spelt(tokens: list[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode()


@cache
def begins(regex: str, text: str) -> bool:
    """Whether a word of the language begins with `text`: three letters on it is one, or never."""
    ends = ("".join(end) for count in range(4) for end in product(LETTERS, repeat=count))
    return any(re.fullmatch(regex, text + end) for end in ends)


def by_definition(regex: str, output: list[int]) -> set[int] | None:
    """Legal next tokens, one by one; None after an illegal one or an end, and where all is said."""
    for count, token in enumerate(output):
        if token not in (by_definition(regex, output[:count]) or ()) or not PIECES[token]:
            return None
    text = spelt(output)
    legal = {t for t, piece in enumerate(PIECES) if piece and begins(regex, text + piece.decode())}
    return (legal | ({END, STOP} if re.fullmatch(regex, text) else set())) if legal else None


def told(matcher: Matcher) -> set[int] | None:
    mask = matcher.mask()
    return None if mask is None else set(np.flatnonzero(mask).tolist())


@settings(max_examples=60)
@given(st.sampled_from(REGEXES), outputs)
def test_it_is_the_definition(regex: str, output: list[int]) -> None:
    """But for text that is forced: of its tokenizations one is left, with which it goes on."""
    matcher = COMPILER.compile(Grammar(kind="regex", text=regex), (END, STOP, 1))
    for count in range(len(output) + 1):
        legal = by_definition(regex, output[:count])
        found = told(matcher)
        if legal is None or found is None:
            assert found is None
            return
        assert found <= legal
        assert found == legal or len(found) == 1
        if count < len(output):
            if output[count] in legal and output[count] not in found:
                return  # another way to spell what is forced
            matcher.extend([output[count]])


@settings(max_examples=60)
@given(st.sampled_from(REGEXES), st.lists(outputs, min_size=1, max_size=5))
def test_it_does_not_matter_which_outputs_came_before(regex: str, history: list[list[int]]) -> None:
    grammar = Grammar(kind="regex", text=regex)
    matcher = COMPILER.compile(grammar, (END, STOP))
    for output in history:
        steered = steer(matcher, output)
        alone = COMPILER.compile(grammar, (END, STOP))
        alone.extend(steered)
        assert told(matcher) == told(alone)
        assert matcher.complete == alone.complete


def steer(matcher: Matcher, output: list[int]) -> list[int]:
    """Follow an output made of legal tokens for the most part, chosen by `output`."""
    steered: list[int] = []
    matcher.follow(steered)
    for choice in output:
        legal = sorted(told(matcher) or ())
        steered.append(legal[choice % len(legal)] if legal and choice < 9 else choice)
        matcher.follow(steered)
    return steered


@settings(max_examples=60)
@given(st.sampled_from(REGEXES), outputs, outputs)
def test_what_is_tried_leaves_no_trace(regex: str, output: list[int], drafts: list[int]) -> None:
    matcher = COMPILER.compile(Grammar(kind="regex", text=regex), (END, STOP))
    steered = steer(matcher, output)
    before = told(matcher)
    completed = matcher.completed_by(drafts)
    assert told(matcher) == before
    for count in range(1, len(drafts) + 1):
        matcher.follow([*steered, *drafts[:count]])
        assert matcher.complete == (count == completed)
        if matcher.complete:
            break
