"""A toy language model that remembers everything: one table serves as target, drafter, tokenizer.

The next token's logits are a row of a seeded table, chosen by a hash chained over the *whole*
context. One wrong, missing, repeated or reordered token changes every later one, so that a text
that agrees with the model's own proves that nothing went wrong before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from draftwire.errors import InvalidRequest
from draftwire.grammar import GrammarCompiler, serves_grammars
from draftwire.types import Tokens
from draftwire.vocab import fingerprint

EOS = 0

_MASK = 2**64 - 1
_STEP = 0xD6E8FEB86659FD93
_SPREAD = 0x9E3779B97F4A7C15
# How far below a row's best the end token lies where the text is not to end: e⁻²⁰ is never drawn.
_EOS_GAP = 20.0


class TableModel:
    """A deterministic language model of `vocabulary_size` tokens over `states` rows of logits.

    Logits are normal with standard deviation `sharpness`: at 0 all tokens are alike, at 4 the
    best has most of the mass. A share `eos_rate` of the rows has the end token (id 0) on top by
    a margin of `sharpness`; in the others it is never drawn, so that a text has about
    1 / `eos_rate` tokens. States are unsigned 64-bit integers; each step is O(1).
    """

    def __init__(
        self,
        *,
        vocabulary_size: int = 64,
        states: int = 1024,
        sharpness: float = 4.0,
        eos_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        if vocabulary_size < 3 or states < 1 or sharpness < 0 or not 0 <= eos_rate <= 1:
            raise InvalidRequest(
                "a table model needs ≥ 3 tokens, ≥ 1 states, sharpness ≥ 0 and eos_rate in [0, 1]"
            )
        rng = np.random.default_rng(seed)
        table = rng.standard_normal((states, vocabulary_size), dtype=np.float32)  # [states, vocab]
        table *= np.float32(sharpness)
        top = table[:, 1:].max(axis=1)
        ends = rng.permutation(states) < round(eos_rate * states)
        table[:, EOS] = np.where(ends, top + np.float32(sharpness), top - np.float32(_EOS_GAP))
        self._adopt(table, sharpness)

    def _adopt(self, table: NDArray[np.float32], sharpness: float) -> None:
        table.flags.writeable = False
        self._table = table
        self._sharpness = sharpness
        self._rows = len(table)
        self._best: list[int] = table.argmax(axis=1).tolist()

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens V."""
        return int(self._table.shape[1])

    @property
    def initial(self) -> int:
        """State before the first token."""
        return _SPREAD

    def extend(self, state: int, token: int) -> int:
        """State after `token`. Injective in each argument, so that no difference ever heals."""
        mixed = ((state ^ ((token + 1) * _STEP & _MASK)) * _SPREAD) & _MASK
        return mixed ^ (mixed >> 32)

    def state_of(self, tokens: Iterable[int]) -> int:
        """State after a whole context."""
        state = self.initial
        for token in tokens:
            state = self.extend(state, token)
        return state

    def logits(self, state: int) -> NDArray[np.float32]:
        """Logits of the next token, float32 [vocab], read-only."""
        row: NDArray[np.float32] = self._table[(state >> 20) % self._rows]
        return row

    def best(self, state: int) -> int:
        """The most likely next token."""
        return self._best[(state >> 20) % self._rows]

    def best_probability(self, state: int) -> float:
        """Probability of the most likely next token at temperature 1."""
        return self._best_probability[(state >> 20) % self._rows]

    @cached_property
    def _best_probability(self) -> list[float]:
        above = np.exp(self._table - self._table.max(axis=1, keepdims=True)).sum(axis=1)
        return (1.0 / above).tolist()  # type: ignore[no-any-return]

    @cached_property
    def digest(self) -> bytes:
        """BLAKE2b-128 of the weights: equal for models that say the same, 16 bytes."""
        return hashlib.blake2b(self._table.tobytes(), digest_size=16).digest()

    def perturbed(self, amount: float, seed: int) -> TableModel:
        """A second model that agrees in part: each logit moved by normal noise.

        `amount` is the noise's standard deviation relative to the model's sharpness. With 64
        tokens the best ones agree in 86 % of the states at 0.1, 66 % at 0.3, 29 % at 1.
        """
        noise = np.random.default_rng(seed).standard_normal(self._table.shape, dtype=np.float32)
        other = TableModel.__new__(TableModel)
        other._adopt(self._table + np.float32(amount * self._sharpness) * noise, self._sharpness)
        return other

    def agreement(self, other: TableModel) -> float:
        """Share of states in which both have the same best token: greedy acceptance."""
        return float(np.mean(np.equal(self._best, other._best)))

    def generate(self, prompt: Tokens, count: int) -> list[int]:
        """What the model says greedily after `prompt`: up to `count` tokens, the end included."""
        state, text = self.state_of(prompt), list[int]()
        while len(text) < count and text[-1:] != [EOS]:
            text.append(self.best(state))
            state = self.extend(state, text[-1])
        return text


# Pieces that come first, so that a small vocabulary has them: words, and characters whose
# bytes are split over two or more tokens, as byte-level vocabularies split them.
_WORDS = " the| of|ing|e|t| a|o|\n|ion| déjà|.|s|über| 你|d| 🙂|n| in"
_SPLIT = "é|ß|語|🚀|👍🏽"
_FIRST: tuple[bytes, ...] = (
    *(word.encode() for word in _WORDS.split("|")),
    *(part for char in _SPLIT.split("|") for part in (char.encode()[:1], char.encode()[1:])),
)
_SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]


def table_pieces(size: int) -> list[bytes]:
    """Text of token ids 0 … `size` − 1, all different; id 0 is the control token `<eos>`.

    From 300 tokens on, every byte is a piece, so that any text can be encoded.
    """
    letters_first = sorted(range(256), key=lambda byte: (not chr(byte).isalpha(), byte))
    pieces = dict.fromkeys((b"<eos>", *_FIRST, *(bytes([byte]) for byte in letters_first)))
    word = 0
    while len(pieces) < size:
        text, rest = " ", word + len(_SYLLABLES)  # at least two syllables
        while rest:
            rest, syllable = divmod(rest, len(_SYLLABLES))
            text += _SYLLABLES[syllable]
        pieces[text.encode()] = None
        word += 1
    return list(pieces)[:size]


@lru_cache
def table_fingerprint(vocabulary_size: int) -> bytes:
    """Fingerprint of the table vocabulary of that size, 32 bytes."""
    strings = [piece.decode("latin-1") for piece in table_pieces(vocabulary_size)]
    return fingerprint(strings, bos=None, eos=EOS)


@lru_cache
def table_grammars(vocabulary_size: int) -> GrammarCompiler | None:
    """Grammars over the table vocabulary of that size, where they can be served."""
    pieces = [b"", *table_pieces(vocabulary_size)[1:]]
    if not serves_grammars(pieces):
        return None
    return GrammarCompiler(pieces, TableTokenizer(vocabulary_size).encode)


class TableTokenizer:
    """Text to ids and back for a table model's vocabulary; has the shape of a drafter's tokenizer.

    Encodes greedily, longest piece first. Adds no beginning token.
    """

    def __init__(self, vocabulary_size: int = 320) -> None:
        self._pieces = table_pieces(vocabulary_size)
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}
        self._longest = max(map(len, self._pieces))

    @property
    def fingerprint(self) -> bytes:
        """Vocabulary fingerprint (`draftwire.vocab`), 32 bytes."""
        return table_fingerprint(len(self._pieces))

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The end token."""
        return frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Raises `InvalidRequest` if a small vocabulary lacks a byte."""
        data, tokens, at = text.encode(), list[int](), 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                if (token := self._ids.get(data[at:end])) is not None:
                    tokens.append(token)
                    at = end
                    break
            else:
                raise InvalidRequest(
                    f"a vocabulary of {len(self._pieces)} table tokens can't spell {data[at:]!r}",
                    remedy="use 300 tokens or more, or pass token ids",
                )
        return tokens

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of `role: content` lines, ready for the assistant's answer."""
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant:")

    def piece(self, token: int) -> bytes:
        """The token's bytes, possibly part of a character; empty for the end token."""
        return b"" if token == EOS else self._pieces[token]
