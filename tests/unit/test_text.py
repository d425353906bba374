"""Text deltas: whole characters only, and together the text, however its bytes were split."""

from __future__ import annotations

import pytest

from draftwire.testing.table import TableTokenizer
from edge_client.text import TextStream


class Bytes:
    """A vocabulary of the given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def piece(self, token: int) -> bytes:
        return self.pieces[token]


def deltas(*pieces: bytes) -> list[str]:
    stream = TextStream(Bytes(*pieces))
    return [stream.feed([token]) for token in range(len(pieces))] + [stream.flush()]


TEXTS = [
    "plain",
    "héllo ß",
    "日本語、한국어",
    "🚀👍🏽 👩‍👩‍👧‍👦",  # skin tone, zero-width joiners
    "e\u0301 a\u0323\u0302 नि",  # combining marks
    "\ufffd is a character too",
    "\x00\n\t\u2028",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_a_split_at_every_byte(text: str) -> None:
    data = text.encode()
    for at in range(len(data) + 1):
        assert "".join(deltas(data[:at], data[at:])) == text


@pytest.mark.parametrize("text", TEXTS)
def test_single_bytes_give_single_whole_characters(text: str) -> None:
    given = deltas(*(bytes([byte]) for byte in text.encode()))
    assert [delta for delta in given if delta] == list(text)


def test_a_character_over_two_calls_comes_once_and_whole() -> None:
    rocket = "🚀".encode()
    assert deltas(b"go " + rocket[:1], rocket[1:3], rocket[3:] + b"!") == ["go ", "", "🚀!", ""]


def test_several_tokens_in_one_call_are_one_delta() -> None:
    stream = TextStream(Bytes("é".encode()[:1], "é".encode()[1:], b"t"))
    assert stream.feed([0, 1, 2]) == "ét"
    assert stream.feed([]) == ""


def test_a_text_that_stops_inside_a_character_ends_with_one_replacement() -> None:
    assert deltas(b"a", "🚀".encode()[:3]) == ["a", "", "\ufffd"]


def test_broken_bytes_are_replaced_at_once_and_what_follows_survives() -> None:
    assert deltas(b"\xff", b"\xe2\x82", b"ok", b"\x80") == ["\ufffd", "", "\ufffdok", "\ufffd", ""]


def test_control_tokens_give_no_text() -> None:
    assert deltas(b"", b"a", b"") == ["", "a", "", ""]


def test_flush_leaves_nothing_behind() -> None:
    stream = TextStream(Bytes("é".encode()[:1], b"x"))
    stream.feed([0])
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.feed([1]) == "x"


def test_a_tokenizers_own_split_of_an_emoji_is_put_together() -> None:
    tokenizer = TableTokenizer(320)
    tokens = tokenizer.encode("déjà 👍🏽 vu")
    stream = TextStream(tokenizer)
    given = [stream.feed([token]) for token in tokens]
    assert "".join(given) == "déjà 👍🏽 vu"
    assert "" in given
