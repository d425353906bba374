"""A target without weights: the table model behind real KV slots, for tests and demos.

What a slot holds is what its last writer left there, as in a real KV cache. A row's context is
read back from the slots that its block table names, so that a missed rollback gives a wrong text,
and a wrong, shared or stale block, which real KV would answer with nonsense, an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from cloud_verifier.judge_reference import judge_row
from cloud_verifier.target import GRAMMAR, STOP_STRINGS, Judgement, Row
from draftwire.acceptance import match
from draftwire.errors import InternalError
from draftwire.grammar import GrammarCompiler
from draftwire.noise import NOISE_VERSION
from draftwire.testing.table import (
    EOS,
    TableModel,
    table_fingerprint,
    table_grammars,
    table_pieces,
)
from draftwire.types import ModelCard, ServingLimits, TargetIdentity, VerifyMode

_EMPTY = -1


class TableTarget:
    """`TargetModel` over a `TableModel`. One target decides the same in whatever batches.

    Each slot holds a token, and the model's state before and after it. Before a row is fed, the
    states of all slots below its start must chain from the initial one without a gap.
    """

    def __init__(
        self,
        model: TableModel,
        *,
        limits: ServingLimits | None = None,
        num_blocks: int = 256,
        block_size: int = 16,
        name: str = "table",
    ) -> None:
        self.model = model
        self._num_blocks = num_blocks
        self._block_size = block_size
        limits = limits or ServingLimits(max_context=num_blocks * block_size)
        self._card = ModelCard(
            target=TargetIdentity(
                model=name,
                digest=model.digest,
                dtype="float32",
                vocabulary_fingerprint=table_fingerprint(model.vocabulary_size),
                noise_version=NOISE_VERSION,
                eos_token_ids=(EOS,),
            ),
            limits=limits,
            vocabulary_size=model.vocabulary_size,
            features=(STOP_STRINGS, GRAMMAR) if self.grammars else (STOP_STRINGS,),
            verify_modes=tuple(VerifyMode),
        )
        self._pieces = table_pieces(model.vocabulary_size)
        slots = num_blocks * block_size
        # Arrays, because a pass touches few slots one by one; numpy reads them in bulk.
        self._tokens = array("q", [_EMPTY]) * slots
        self._before = array("Q", [0]) * slots
        self._after = array("Q", [0]) * slots
        self._tokens_view = np.frombuffer(self._tokens, np.int64)  # [slots]
        self._before_view = np.frombuffer(self._before, np.uint64)
        self._after_view = np.frombuffer(self._after, np.uint64)
        self._in_block = np.arange(block_size)

    @property
    def card(self) -> ModelCard:
        """Identity, vocabulary and limits."""
        return self._card

    @property
    def block_size(self) -> int:
        """Positions a KV block holds."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """KV blocks there are."""
        return self._num_blocks

    def piece(self, token: int) -> bytes:
        """The token's bytes in the table vocabulary; empty for the end token."""
        return b"" if token == EOS else self._pieces[token]

    @property
    def grammars(self) -> GrammarCompiler | None:
        """That of the table vocabulary, where it has every byte and llguidance is installed."""
        return table_grammars(self.model.vocabulary_size)

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        """Run one pass. Raises `InternalError` naming the fault if a row contradicts the slots."""
        for row in rows:
            self._check(row)
        # All rows are written before any is judged, as the layers of a real model do.
        states = [self._feed(row, self._context_state(row)) for row in rows]
        written = [slot for row in rows for slot in self._slots(row, row.start, row.end)]
        if len(set(written)) < len(written):
            raise InternalError("two rows of a pass write to one KV slot: a block has two owners")
        return [
            self._judge(row, row_states) if row.judge else None
            for row, row_states in zip(rows, states, strict=True)
        ]

    def close(self) -> None:
        """Forget all slots."""
        self._tokens_view[:] = _EMPTY
        self._before_view[:] = 0
        self._after_view[:] = 0

    def _check(self, row: Row) -> None:
        limits, vocabulary = self._card.limits, self.model.vocabulary_size
        if not row.tokens:
            raise InternalError("a row feeds no tokens")
        if min(row.tokens) < 0 or max(row.tokens) >= vocabulary:
            raise InternalError(f"a row feeds a token id outside the vocabulary of {vocabulary}")
        if row.start < 0 or row.end > limits.max_context:
            raise InternalError(f"a row ends at {row.end}, past a context of {limits.max_context}")
        if row.end > len(row.blocks) * self._block_size:
            raise InternalError(f"{len(row.blocks)} KV blocks can't hold {row.end} positions")
        if min(row.blocks) < 0 or max(row.blocks) >= self._num_blocks:
            raise InternalError(f"a KV block is outside the {self._num_blocks} there are")
        if len(set(row.blocks)) < len(row.blocks):
            raise InternalError("a KV block stands twice in one block table")
        if row.drafts < 0 or row.drafts >= (len(row.tokens) if row.judge else 1):
            raise InternalError("a judged row needs a committed token before its drafts")
        if row.drafts >= limits.max_rows:
            raise InternalError(f"{row.drafts} drafts need more than {limits.max_rows} rows")

    def _slots(self, row: Row, start: int, end: int) -> list[int]:
        """Slots of positions [start, end)."""
        size, blocks = self._block_size, row.blocks
        return [blocks[at // size] * size + at % size for at in range(start, end)]

    def _context_state(self, row: Row) -> int:
        """The state before the row's first token, read from the slots below it."""
        if row.start == 0:
            return self.model.initial
        blocks = np.array(row.blocks[: -(-row.start // self._block_size)])  # [blocks]
        slots = (blocks[:, None] * self._block_size + self._in_block).ravel()[: row.start]
        before, after = self._before_view[slots], self._after_view[slots]  # [start]
        # An empty slot's zeros are no state of any context, so it breaks the chain as well.
        if before[0] != self.model.initial or not np.array_equal(before[1:], after[:-1]):
            expected = np.append(np.uint64(self.model.initial), after[:-1])
            at = int((before != expected).argmax())
            block, token = row.blocks[at // self._block_size], self._tokens[slots[at]]
            fault = "was never written" if token == _EMPTY else "holds another context's token"
            raise InternalError(
                f"KV slot of position {at} (block {block}) {fault}, read for a row at {row.start}"
            )
        return int(after[-1])

    def _feed(self, row: Row, state: int) -> list[int]:
        """Write the row's tokens; the states after each of its last `drafts` + 1 tokens."""
        extend, states = self.model.extend, list[int]()
        for slot, token in zip(self._slots(row, row.start, row.end), row.tokens, strict=True):
            self._tokens[slot] = token
            self._before[slot] = state
            state = extend(state, token)
            self._after[slot] = state
            states.append(state)
        return states[-row.drafts - 1 :]

    def _judge(self, row: Row, states: Sequence[int]) -> Judgement:
        plain = row.mode is VerifyMode.MATCH and row.adjuster is None and not row.logprobs
        if row.sampling.greedy and plain:
            return Judgement(*match(row.drafted, [self.model.best(state) for state in states]))
        return judge_row(row, np.stack([self.model.logits(state) for state in states]))
