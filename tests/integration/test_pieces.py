"""Bytes of token ids, from tokenizers made here: one of each family, and one of neither."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.models


def tokenizer(vocabulary: list[str], decoder: Any, specials: list[str]) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    ids = {text: token for token, text in enumerate(vocabulary)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[]))
    backend.decoder = decoder
    backend.add_special_tokens(specials)
    backend.add_tokens(["  own"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def pieces(*of: Any) -> Any:
    from cloud_verifier.pieces import token_pieces

    return token_pieces(tokenizer(*of))


def test_sentence_piece_writes_spaces_and_bytes_in_its_own_way() -> None:
    decoders = pytest.importorskip("tokenizers").decoders
    steps = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    assert pieces(["<s>", "▁the", "é", "<0x0A>", "▁▁", "<0xZZ>"], steps, ["<s>"]) == [
        b"",
        b" the",
        "é".encode(),
        b"\n",
        b"  ",
        b"<0xZZ>",
        b"  own",
    ]


def test_byte_level_spells_bytes_with_printable_characters() -> None:
    decoders = pytest.importorskip("tokenizers").decoders
    assert pieces(["<s>", "Ġthe", "Ã", "©", "Ċ", "日"], decoders.ByteLevel(), ["<s>"]) == [
        b"",
        b" the",
        b"\xc3",
        b"\xa9",
        b"\n",
        "日".encode(),
        b"  own",
    ]


def test_a_way_of_writing_that_is_not_known_gives_none() -> None:
    decoders = pytest.importorskip("tokenizers").decoders
    assert pieces(["<s>", "the"], decoders.WordPiece(), ["<s>"]) is None
