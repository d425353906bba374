"""The vocabulary's fingerprint: equal for draft and target iff a token id means the same to both.

A GGUF file and the same model's Hugging Face tokenizer give the same fingerprint. Where they
write the same vocabulary differently, it is normalised:

- An embedding matrix is often padded past the tokenizer. GGUF names such ids, and holes,
  `[PAD<id>]`; Hugging Face has no string for them. Both count as no token, and trailing ones are
  left out.
- GGUF stores the spaces of user-defined tokens as spaces, Hugging Face as `▁` (U+2581).

Of the special tokens only two count, by what they do, because files often name others that
nothing uses: `bos` is the token that the tokenizer puts before every prompt (None if it adds
none, even where the file names one), `eos` the token that ends an answer.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

FINGERPRINT_BYTES = 32
_VERSION = b"draftwire vocabulary 1\n"


def normalise(tokens: Sequence[str | None]) -> list[str]:
    """Token strings in id order, empty where an id has no token, without trailing padding."""
    strings = [
        "" if token is None or token == f"[PAD{i}]" else token.replace("\u2581", " ")
        for i, token in enumerate(tokens)
    ]
    while strings and not strings[-1]:
        strings.pop()
    return strings


def fingerprint(tokens: Sequence[str | None], *, bos: int | None, eos: int | None) -> bytes:
    """Fingerprint of a vocabulary, 32 bytes: SHA-256 over token strings and special ids.

    `tokens` are the raw strings of the vocabulary in id order (byte-level ones stay so encoded),
    None where an id has none. For `bos` and `eos` see the module.
    """
    digest = hashlib.sha256(_VERSION)
    for token in normalise(tokens):
        text = token.encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<I", len(text)))
        digest.update(text)
    for special in (bos, eos):
        digest.update(struct.pack("<q", -1 if special is None else special))
    return digest.digest()
