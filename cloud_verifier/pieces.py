"""The text of each token of a Hugging Face tokenizer, as bytes (`draftwire.pieces`)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from draftwire import pieces


def token_pieces(tokenizer: PreTrainedTokenizerBase) -> Sequence[bytes] | None:
    """Bytes of every token id; None, which refuses stop strings, where they can't be known."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    added = {
        token: "" if one.special else one.content
        for token, one in tokenizer.added_tokens_decoder.items()
    }
    strings: Sequence[str | None] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return pieces.token_pieces(strings, added, json.loads(backend.to_str()).get("decoder"))
