"""Token ids to text as it streams, a character at a time and never a part of one."""

from __future__ import annotations

import codecs
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from draftwire.errors import InvalidRequest


class Pieces(Protocol):
    """The part of `edge_client.drafter.Tokenizer` that gives text."""

    def piece(self, token: int) -> bytes:
        """The token's text as bytes, possibly part of a character."""
        ...


def pieces_of(tokenizer: Pieces, vocabulary_size: int) -> list[bytes]:
    """The bytes of each token; none for those that only the model's matrices know."""
    pieces = []
    for token in range(vocabulary_size):
        try:
            pieces.append(tokenizer.piece(token))
        except InvalidRequest:
            pieces.append(b"")
    return pieces


def checked_text(text: str, what: str) -> str:
    """The text itself. Raises `InvalidRequest` if half of a surrogate pair stands in it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} holds half of a surrogate pair at {error.start}",
            remedy="cut texts between characters, and decode bytes as UTF-8",
        ) from None
    return text


def checked_messages(messages: Sequence[Any]) -> Sequence[Mapping[str, str]]:
    """The messages themselves. Raises `InvalidRequest`, which says which one is none."""
    if isinstance(messages, str | Mapping) or not messages:
        raise InvalidRequest("messages is no list of messages, or an empty one")
    for index, message in enumerate(messages):
        for name in ("role", "content"):
            value = message.get(name) if isinstance(message, Mapping) else None
            if not isinstance(value, str):
                raise InvalidRequest(
                    f"messages[{index}] has no text as its {name}",
                    remedy='write {"role": "user", "content": "…"}',
                )
            checked_text(value, f"messages[{index}]")
    return messages


class TextStream:
    """Turns committed tokens into text deltas.

    A token may hold a part of a character (an emoji is often two or three tokens): its bytes wait
    for the rest. The deltas joined are the text of all bytes joined, however they were split.
    Committed tokens are never taken back, so neither is text.
    """

    def __init__(self, tokenizer: Pieces) -> None:
        """Start with no text. `tokenizer` gives the bytes of each token."""
        self._piece = tokenizer.piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def fork(self) -> TextStream:
        """Another one that goes on from here."""
        other = copy.copy(self)
        other._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        other._decoder.setstate(self._decoder.getstate())
        return other

    def feed(self, tokens: Iterable[int]) -> str:
        """Text that these tokens complete; empty while a character is unfinished.

        Bytes that can't be UTF-8, whatever follows, become U+FFFD at once.
        """
        return self.feed_bytes(b"".join(map(self._piece, tokens)))

    def feed_bytes(self, data: bytes) -> str:
        """As `feed`, for a part of a token's bytes."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD if the text stops inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
