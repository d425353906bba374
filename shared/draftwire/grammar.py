"""Which tokens keep an output within a grammar: what llguidance says of it, for both sides.

A `GrammarCompiler` knows a vocabulary, and makes of a grammar a `Matcher`, which follows one output
forward and back. What it says of a position is a function of the output before it, however that
came about: a rejected draft leaves nothing behind.

Where the grammar leaves a single continuation, a key of a JSON object say, the one legal token is
that with which the tokenizer itself would begin it. So the text is tokenized as models know it, and
such tokens can be drafted without a model.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftwire.errors import InvalidRequest, LimitExceeded
from draftwire.types import Grammar, Tokens, common_prefix

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions

logger = logging.getLogger(__name__)

Mask = NDArray[np.bool_]

_KEPT = 32  # compiled grammars: requests of one application mostly share theirs
# Small models would fill a text with the white space that JSON allows. A schema says otherwise by
# an `x-guidance` of its own.
_JSON: JsonCompileOptions = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
_OWN_WAY = re.compile(r'"x-guidance"|^\s*(true|false)\s*$')
_MESSAGE = 300  # characters of a compiler's message that are passed on


def serves_grammars(pieces: Sequence[bytes]) -> bool:
    """Whether grammars can be followed in a vocabulary of these tokens.

    llguidance must be installed, and every printable ASCII character and the line feed be a token:
    else ordinary grammars would ask for what can't be spelt.
    """
    needed = {bytes([byte]) for byte in (*range(0x20, 0x7F), 0x0A)}
    return find_spec("llguidance") is not None and needed <= {*pieces}


class GrammarCompiler:
    """Makes matchers for a vocabulary whose token i has the text `pieces[i]`, empty for none.

    `encode` tokenizes text as the model's tokenizer does, a beginning token allowed; without it
    the longest tokens are taken. To be made only where `serves_grammars(pieces)`; making one takes
    a few microseconds a token. Threads may share it.
    """

    def __init__(
        self, pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]] | None = None
    ) -> None:
        from llguidance import LLParserLimits, LLTokenizer

        self._pieces = pieces
        # Beside a pass nobody may take the engine's thread for long, nor much of its memory.
        self._limits = LLParserLimits(
            initial_lexer_fuel=500_000,
            step_lexer_fuel=20_000,
            step_max_items=10_000,
            max_lexer_states=20_000,
            max_grammar_size=100_000,
            verbose_errors=False,
        )
        self._tokenizer = LLTokenizer(_Vocabulary(pieces, encode))  # type: ignore[arg-type]
        self._known: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = Lock()  # of what is known; compiling goes on without it

    def compile(self, grammar: Grammar, ends: Collection[int] = ()) -> Matcher:
        """A matcher at the beginning of an output, which `ends` may end where the grammar may.

        What was compiled lately is not compiled again. Raises `InvalidRequest` with the compiler's
        words if there is something wrong with it.
        """
        with self._lock:
            root = self._known.get(grammar)
        root = root or self._compile(grammar)
        with self._lock:
            self._known[grammar] = root
            self._known.move_to_end(grammar)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        # An end token with a text of its own is text: legal where that is.
        silent = [end for end in ends if end < len(self._pieces) and not self._pieces[end]]
        return Matcher(root, silent, len(self._pieces))

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, grammar_from

        try:
            if grammar.kind == "json_schema":
                ours = None if _OWN_WAY.search(grammar.text) else _JSON
                source = LLMatcher.grammar_from_json_schema(grammar.text, defaults=ours)
            else:
                source = grammar_from(grammar.kind, grammar.text)  # type: ignore[arg-type]
        except ValueError as error:
            raise _refused(grammar, str(error)) from error
        root = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if root.is_error():
            raise _refused(grammar, root.get_error())
        if not _legal(root.deep_copy())[: len(self._pieces)].any():
            raise _refused(grammar, root.get_error() or "it allows no text at all")
        return root


def _refused(grammar: Grammar, reason: str) -> InvalidRequest:
    words = " ".join(reason.split())
    return InvalidRequest(
        f"the {grammar.kind} grammar can't be used: {words[:_MESSAGE]}",
        remedy="correct it, or use only what llguidance's documentation lists",
    )


def _legal(state: LLMatcher) -> Mask:
    """Legal tokens, [vocab + 1]; the last stands for the end."""
    packed = np.frombuffer(state.compute_bitmask(), np.uint8)
    return np.unpackbits(packed, bitorder="little").view(np.bool_)


class Matcher:
    """Follows an output of one generation through a grammar.

    Tokens from the first illegal one or end token on are remembered, but not followed. `ends` are
    tokens without a text, legal where the grammar may end.
    """

    def __init__(self, root: LLMatcher, ends: Sequence[int], vocabulary_size: int) -> None:
        self._root = root
        self.ends = ends
        self._size = vocabulary_size
        self._state = root.deep_copy()
        self._output: list[int] = []
        self._followed = 0  # leading tokens of the output that the state is after
        self._text: Mask | None = None  # what of text is legal next, [vocab], once it is known
        self._may_end = False

    def fresh(self) -> Matcher:
        """Another one for the same grammar, at the beginning."""
        return Matcher(self._root, self.ends, self._size)

    def extend(self, tokens: Tokens) -> None:
        """The output goes on with `tokens`."""
        for token in tokens:
            if self._followed == len(self._output) and self._legal_text()[token]:
                self._followed += self._state.consume_token(token)
                self._text = None
            self._output.append(token)

    def follow(self, output: Tokens) -> None:
        """The output is `output`: what it no longer shares with the old one is forgotten."""
        kept = common_prefix(self._output, output)
        if kept < len(self._output):
            self.truncate(kept)
        self.extend(output[kept:])

    def truncate(self, length: int) -> None:
        """Only the first `length` tokens of the output are left."""
        del self._output[length:]
        back = self._followed - length
        if self._state.is_error() or (back > 0 and not self._state.rollback(back)):
            # What failed stays so, though it may have been over drafts that are gone.
            self._state, self._text = self._root.deep_copy(), None
            self._followed = self._state.try_consume_tokens(self._output[: self._followed])
        elif back > 0:
            self._followed, self._text = length, None

    def mask(self) -> Mask | None:
        """Tokens that are legal next, [vocab].

        None, for any, where that decides nothing: after what is not legal, where the output is
        complete and so ends, and where following failed (`check`).
        """
        if self._followed < len(self._output):
            return None
        legal = self._legal_text()
        if self._state.is_error() or not legal.any():
            return None
        if self._may_end:
            legal = legal.copy()
            legal[self.ends] = True
        return legal

    @property
    def complete(self) -> bool:
        """Whether the output is all that the grammar allows: no text may follow."""
        if self._followed < len(self._output) or self._legal_text().any():
            return False
        return self._may_end and not self._state.is_error()

    def completed_by(self, tokens: Tokens) -> int | None:
        """After how many of `tokens`, if they come next, the output is complete; None if never."""
        length = len(self._output)
        try:
            for count, token in enumerate(tokens, start=1):
                self.extend((token,))
                if self.complete:
                    return count
            return None
        finally:
            self.truncate(length)

    def check(self) -> None:
        """Raise `LimitExceeded` if the grammar can't be followed on after this output.

        It became too costly, or asks for a character that the vocabulary can't spell.
        """
        dead = False
        if self._followed == len(self._output):
            dead = not self._legal_text().any() and not self._may_end
        if dead or self._state.is_error():
            words = " ".join(self._state.get_error().split()) or "no token goes on"
            raise LimitExceeded(
                f"the grammar can't be followed any further: {words[:_MESSAGE]}",
                remedy="use a simpler grammar, of characters that the model knows",
            )

    def accepts(self, output: Tokens) -> bool:
        """Whether the grammar allows an output that begins like this, up to its end token."""
        other = self.fresh()
        other.extend(output)
        left = output[other._followed :]
        return not left or (left[0] in self.ends and other._at_an_end)

    @property
    def _at_an_end(self) -> bool:
        self._legal_text()
        return self._may_end

    def _legal_text(self) -> Mask:
        if self._text is None:
            legal = _legal(self._state)
            self._text, self._may_end = legal[: self._size], bool(legal[self._size])
        return self._text


class _Vocabulary:
    """A vocabulary as llguidance wants it. It must not raise: that would end the process."""

    is_tokenizer_wrapper = True
    eos_token_id = None  # it then adds one of its own after the others
    bos_token_id = None
    special_token_ids = ()

    def __init__(
        self, pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]] | None
    ) -> None:
        self.tokens = list(pieces)
        self._encode = encode
        self._ids = {piece: token for token, piece in reversed([*enumerate(pieces)])}
        self._longest = max(map(len, pieces))

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text."""
        data = text.encode()
        return self._as_tokenized(text, data) or self._longest_first(data)

    def _as_tokenized(self, text: str, data: bytes) -> list[int]:
        """By the model's tokenizer; nothing if that gives another text than this."""
        if self._encode is None:
            return []
        try:
            # Some put a token or a space before; and a control token is no text.
            tokens = [token for token in self._encode(text) if self.tokens[token]]
        except Exception:
            logger.exception("the tokenizer failed; the longest tokens are taken")
            return []
        return tokens if b"".join(self.tokens[token] for token in tokens) == data else []

    def _longest_first(self, data: bytes) -> list[int]:
        tokens, at = list[int](), 0
        while at < len(data):
            end = min(len(data), at + self._longest)
            while data[at:end] not in self._ids:
                end -= 1
                if end == at:
                    return tokens  # it can't be spelt; `Matcher.check` will find that
            tokens.append(self._ids[data[at:end]])
            at = end
        return tokens
