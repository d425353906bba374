"""What both sides speak of: requests, frames and identities, as frozen values.

Token ids are plain `int`; positions count tokens from the first prompt token. A value that
breaks a rule raises `InvalidRequest` when it is made, so that a value that exists is valid.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

from draftwire.errors import InvalidRequest

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 1 << 20  # a prompt of some 300,000 tokens; all else is far smaller
DEFAULT_ADDRESS = "127.0.0.1:7433"
MAX_TOKEN_ID = 2**31 - 1
MAX_COUNT = 2**32 - 1  # counts and positions travel as 32 bits
SESSION_ID_BYTES = 16
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024
MAX_STATED_TOKENS = 64  # of a draft's distribution
MAX_STOP_STRINGS = 64
MAX_STOP_BYTES = 1024  # of one stop string, in UTF-8
MAX_GRAMMAR_BYTES = 1 << 16  # in UTF-8

Tokens: TypeAlias = Sequence[int]


def _require(condition: bool, message: str, remedy: str = "") -> None:
    if not condition:
        raise InvalidRequest(message, remedy=remedy)


def _check_counts(value: object, what: str, *names: str, least: int = 0) -> None:
    for name in names:
        count = getattr(value, name)
        _require(
            least <= count <= MAX_COUNT, f"{what}{name} is {count}, not in [{least}, {MAX_COUNT}]"
        )


def check_tokens(tokens: Tokens, what: str) -> None:
    """Raise `InvalidRequest` unless every token id is in [0, 2³¹)."""
    _require(
        not tokens or (min(tokens) >= 0 and max(tokens) <= MAX_TOKEN_ID),
        f"{what} holds a token id outside [0, {MAX_TOKEN_ID}]",
    )


def pack_tokens(tokens: Tokens) -> bytes:
    """Token ids as little-endian uint32, which is what is hashed."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def history_hash(tokens: Tokens) -> bytes:
    """BLAKE2b-128 of `pack_tokens`, 16 bytes; empty for no tokens."""
    return hashlib.blake2b(pack_tokens(tokens), digest_size=16).digest() if tokens else b""


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


class VerifyMode(enum.Enum):
    """How drafts are judged. `MATCH` and `REJECTION` are exact, `TYPICAL` is lossy."""

    MATCH = "match"
    REJECTION = "rejection"
    TYPICAL = "typical"


class FinishReason(enum.Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


_PENALTIES = (
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How logits become a token, in the order in which they apply (see `draftwire.sampling`).

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 keep every token.
    `seed` keys every random draw and is an unsigned 64-bit integer. The repetition penalty counts
    prompt and output, the others the output. Penalties and bias are bounded, so that no logit
    leaves float32.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        _require(
            0 <= self.temperature <= 100, f"temperature is {self.temperature}, not in [0, 100]"
        )
        _check_counts(self, "", "top_k")
        _require(0 < self.top_p <= 1, f"top_p is {self.top_p}, not in (0, 1]")
        _require(0 <= self.min_p <= 1, f"min_p is {self.min_p}, not in [0, 1]")
        _require(0 <= self.seed < 2**64, f"seed is {self.seed}, not in [0, 2⁶⁴)")
        for name, least, most in _PENALTIES:
            value = getattr(self, name)
            _require(least <= value <= most, f"{name} is {value}, not in [{least}, {most}]")
        bias = self.logit_bias
        check_tokens(list(bias), "logit_bias")
        _require(
            all(-100 <= value <= 100 for value in bias.values()), "logit_bias is not in [-100, 100]"
        )
        _require(
            len(bias) <= MAX_BIASED_TOKENS,
            f"logit_bias names {len(bias)} tokens, more than {MAX_BIASED_TOKENS}",
        )

    @property
    def greedy(self) -> bool:
        """Whether the token is the plain argmax."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """When a generation ends. `max_tokens` 0: when the context is full.

    The first `min_tokens` tokens of the output are no end tokens, and no stop string is looked for
    in their text.
    """

    max_tokens: int = 0
    min_tokens: int = 0
    token_ids: Tokens = ()
    strings: Sequence[str] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_counts(self, "", "max_tokens", "min_tokens")
        _require(
            not self.max_tokens or self.min_tokens <= self.max_tokens,
            f"min_tokens is {self.min_tokens}, above max_tokens, {self.max_tokens}",
        )
        check_tokens(self.token_ids, "stop token ids")
        _require(all(self.strings), "a stop string is empty")
        _require(
            len(self.strings) <= MAX_STOP_STRINGS
            and all(len(text.encode(errors="replace")) <= MAX_STOP_BYTES for text in self.strings),
            f"more than {MAX_STOP_STRINGS} stop strings, or one longer than {MAX_STOP_BYTES} bytes",
        )

    def reach(self, start: int, max_context: int) -> int:
        """The longest a text can get whose output begins at `start`, tokens."""
        return min(max_context, start + self.max_tokens) if self.max_tokens else max_context

    def ends(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """Tokens that end a text of a model with these end tokens."""
        named = frozenset(self.token_ids)
        return named if self.ignore_eos else named.union(eos_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """Constrains the output. `kind` is `json_schema`, `regex` or `lark`.

    The text is at most `MAX_GRAMMAR_BYTES` long. Whether it compiles, a verifier says.
    """

    kind: str
    text: str

    def __post_init__(self) -> None:
        _require(
            self.kind in ("json_schema", "regex", "lark"),
            f"grammar kind {self.kind!r} is not known",
            "use json_schema, regex or lark",
        )
        _require(
            len(self.text.encode(errors="replace")) <= MAX_GRAMMAR_BYTES,
            f"the grammar is longer than {MAX_GRAMMAR_BYTES} bytes",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Committed tokens: a prefix by length and hash, and the tokens after it."""

    tokens: Tokens
    prefix_length: int = 0
    prefix_hash: bytes = b""

    def __post_init__(self) -> None:
        check_tokens(self.tokens, "history")
        _check_counts(self, "history ", "prefix_length")
        _require(
            len(self.prefix_hash) == (16 if self.prefix_length else 0),
            "history prefix hash must be 16 bytes with a prefix and empty without",
        )

    def __len__(self) -> int:
        return self.prefix_length + len(self.tokens)


# ------------------------------------------------------------------ client → verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Opens a generation, or opens it again after a cut (rules 1–8)."""

    session_id: bytes
    attempt: int
    generation: int
    start: int
    history: History
    vocabulary_fingerprint: bytes
    sampling: SamplingParams = SamplingParams()
    stop: StopRules = StopRules()
    mode: VerifyMode = VerifyMode.MATCH
    model: str = ""
    grammar: Grammar | None = None
    required_features: Sequence[str] = ()
    expected_target: bytes = b""
    logprobs: int = 0
    protocol_version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        _require(
            len(self.session_id) == SESSION_ID_BYTES, f"session id is not {SESSION_ID_BYTES} bytes"
        )
        _check_counts(self, "", "attempt", "generation", least=1)
        _require(
            1 <= self.start <= len(self.history),
            f"start is {self.start}, not in [1, {len(self.history)}]",
            "a prompt has at least one token, and the history holds all of it",
        )
        _check_counts(self, "", "logprobs", "protocol_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactDistribution:
    """A truncated, quantized distribution: weight i (0–255) belongs to token i, all else is 0.

    Token ids rise: so they are distinct, and their differences travel in few bytes.
    """

    tokens: Tokens
    weights: bytes

    def __post_init__(self) -> None:
        check_tokens(self.tokens, "draft distribution")
        _require(len(self.tokens) == len(self.weights), "draft distribution: weights ≠ tokens")
        _require(any(self.weights), "draft distribution has no weight")
        _require(
            len(self.tokens) <= MAX_STATED_TOKENS,
            f"draft distribution names more than {MAX_STATED_TOKENS} tokens",
        )
        _require(
            all(a < b for a, b in pairwise(self.tokens)), "draft distribution: token ids must rise"
        )

    def weight(self, token: int) -> int:
        """The weight of a token."""
        return self.weights[self.tokens.index(token)] if token in self.tokens else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Tokens proposed for [base, base + len(tokens)), and credit beyond them (rules 9–14)."""

    base: int
    epoch: int
    tokens: Tokens = ()
    credit: int = 0
    parents: Tokens = ()
    q: Sequence[CompactDistribution] = ()

    def __post_init__(self) -> None:
        check_tokens(self.tokens, "draft")
        check_tokens(self.parents, "draft parents")
        _check_counts(self, "draft ", "base", "epoch", "credit")

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.base + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends the generation between passes."""


ClientFrame: TypeAlias = Open | Draft | Cancel

# ------------------------------------------------------------------ verifier → client


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIdentity:
    """Which target speaks: equal digests mean equal weights, dtype and noise."""

    model: str
    digest: bytes
    dtype: str
    vocabulary_fingerprint: bytes
    noise_version: int
    eos_token_ids: Tokens = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """What one session may ask, in tokens. `max_rows` is R: a pass judges up to R − 1 drafts."""

    max_context: int
    max_pending: int = 256
    max_credit: int = 256
    max_rows: int = 33

    def __post_init__(self) -> None:
        _require(self.max_context >= 2, "max_context must be ≥ 2 tokens")
        _require(min(self.max_pending, self.max_credit) >= 1, "pending and credit must be ≥ 1")
        _require(self.max_rows >= 2, "max_rows must be ≥ 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a verifier serves."""

    target: TargetIdentity
    limits: ServingLimits
    vocabulary_size: int
    verify_modes: Sequence[VerifyMode] = (VerifyMode.MATCH,)
    features: Sequence[str] = ()
    protocol_versions: Sequence[int] = (PROTOCOL_VERSION,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Answers an open: who the target is and where the session stands."""

    target: TargetIdentity
    limits: ServingLimits
    length: int
    cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where a verdict's time went, µs, and how many rows its pass had over all sessions.

    `frames` drafts of the stream had come before the pass, the last of them `heard_us` before it;
    both are 0 unless some came since the last verdict.
    """

    queue_us: int = 0
    pass_us: int = 0
    pass_rows: int = 0
    frames: int = 0
    heard_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What would serve all sessions best at the present load."""

    suggested_k: int = 0
    load_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probability of a committed token, and those of the most likely ones."""

    logprob: float
    top_tokens: Tokens = ()
    top_logprobs: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one pass decided (rules 16–19): `accepted` drafts from `base` on, then `next`."""

    base: int
    accepted: int
    next: Tokens
    timing: Timing = Timing()
    hint: Hint | None = None
    logprobs: Sequence[TokenLogprobs] = ()

    def __post_init__(self) -> None:
        check_tokens(self.next, "verdict")
        _check_counts(self, "verdict ", "base", "accepted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a generation took. Counts are tokens, except `passes` of the target."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Ends a generation: `length` tokens of the session are retained (rule 22)."""

    reason: FinishReason
    length: int
    usage: Usage = Usage()


ServerFrame: TypeAlias = Opened | Verdict | Finished
