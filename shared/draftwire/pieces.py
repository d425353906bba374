"""The text of each token of a Hugging Face tokenizer, as bytes: what stop strings are found in.

Two families cover the models served: byte-level ones, whose token strings spell bytes with
printable characters, and SentencePiece ones with byte fallback, where ▁ is a space and `<0x0A>` a
byte. Special tokens have no text. Any other tokenizer gives none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_pieces(
    strings: Sequence[str | None], added: Mapping[int, str], decoder: Mapping[str, Any] | None
) -> list[bytes] | None:
    """Bytes of every token id; None where this tokenizer's way of writing them is not known.

    `strings` are those of the vocabulary in id order, None where an id has none; `added` the texts
    of tokens added to it, empty for special ones; `decoder` what `tokenizer.json` says of it.
    """
    steps = set(_steps(decoder))
    byte_level = "ByteLevel" in steps
    if not byte_level and "ByteFallback" not in steps:
        return None
    pieces = []
    for token, string in enumerate(strings):
        if token in added:
            pieces.append(added[token].encode())
        elif string is None:
            pieces.append(b"")
        else:
            pieces.append(_byte_level(string) if byte_level else _sentence_piece(string))
    return pieces


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    """Names of a decoder's steps, those within a sequence too."""
    if decoder:
        yield decoder["type"]
        for step in decoder.get("decoders", ()):
            yield from _steps(step)


def _sentence_piece(string: str) -> bytes:
    if byte := _BYTE.fullmatch(string):
        return bytes([int(byte[1], 16)])
    return string.replace("\u2581", " ").encode()


def _byte_level(string: str) -> bytes:
    if all(char in _BYTE_OF for char in string):
        return bytes(_BYTE_OF[char] for char in string)
    return string.encode()


def _byte_characters() -> dict[str, int]:
    """The characters that stand for bytes: themselves where printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_characters()
