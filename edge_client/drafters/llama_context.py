"""A llama.cpp context: which tokens its cache holds, and the logits after them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwire.errors import CannotRollBack, InternalError, InvalidRequest, ModelLoadFailed
from draftwire.types import Tokens
from edge_client.drafters.llama_library import llama, recent_errors, signals_later
from edge_client.drafters.threaded import OVERTAKEN, Logits

if TYPE_CHECKING:
    from edge_client.drafters.llama import LlamaModel


class LlamaContext:
    """A `Context`: tokens, and as much of them as the cache holds.

    Between calls `decoded <= min(len(tokens), held)`: the cache is right up to `decoded`, may hold
    something else up to `held`, and is owed the rest of `tokens`. Nothing is decoded on a wrong
    cache: `logits` first removes what is past `decoded`.
    """

    def __init__(self, model: LlamaModel, *, threads: int, size: int, batch: int) -> None:
        """Allocate the cache for `size` tokens. Raises `ModelLoadFailed` if it can't be."""
        self._llama = llama()
        self._model_name = model.name
        self._vocabulary_size = model.vocabulary_size
        self._batch_size = min(batch, size)
        self.tokens: list[int] = []
        self._decoded = 0
        self._held = 0

        parameters = self._llama.llama_context_default_params()
        parameters.n_ctx = size
        parameters.n_batch = parameters.n_ubatch = self._batch_size
        parameters.n_seq_max = 1
        parameters.n_threads = parameters.n_threads_batch = threads
        # A sliding window's cache that holds the window only could not be rewound.
        parameters.swa_full = True
        parameters.no_perf = True
        recent_errors()
        with signals_later():
            self._context: Any = self._llama.llama_init_from_model(model.pointer, parameters)
        if not self._context:
            raise ModelLoadFailed(
                f"no context of {size} tokens for {model.path}: {recent_errors() or 'no reason'}",
                remedy="ask for a shorter context",
            )
        self._memory = self._llama.llama_get_memory(self._context)
        self._batch = self._llama.llama_batch_init(self._batch_size, 0, 1)
        for i in range(self._batch_size):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0
        self._address = 0
        self._view: Logits = np.empty(0, np.float32)

    def truncate(self, keep: int) -> None:
        """Forget the tokens from position `keep` on; the cache follows at the next `logits`."""
        del self.tokens[keep:]
        self._decoded = min(self._decoded, keep)

    def logits(self, abandoned: Callable[[], bool] = lambda: False) -> Logits:
        """Logits after the last token, [vocabulary]: a view, valid until the next call.

        Decodes what the cache is owed, at most a batch at a time, and gives up between two
        batches when `abandoned` says so. Raises `CannotRollBack` if the cache refuses to be
        rewound, `InvalidRequest` for an empty context and `InternalError` if decoding fails;
        the next call then finds the context as it was.
        """
        if not self.tokens:
            raise InvalidRequest("an empty context predicts nothing", remedy="give a prompt")
        # Logits come from decoding: if all is decoded, the last token is decoded again.
        self._decoded = min(self._decoded, len(self.tokens) - 1)
        if self._held > self._decoded:
            self._roll_back()
        count = 0
        while self._decoded < len(self.tokens):
            if abandoned():
                raise InternalError(OVERTAKEN)
            count = min(self._batch_size, len(self.tokens) - self._decoded)
            self._decode(self.tokens[self._decoded : self._decoded + count])
        return self._logits_of_row(count - 1)

    def close(self) -> None:
        """Free the cache. Views handed out are invalid from here on. May be called again."""
        if self._context:
            self._view = np.empty(0, np.float32)
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_free(self._context)
            self._context = None

    def _roll_back(self) -> None:
        if not self._llama.llama_memory_seq_rm(self._memory, 0, self._decoded, -1):
            raise CannotRollBack(
                f"the cache of {self._model_name} can't be rewound to position {self._decoded}",
                remedy="choose a draft model with an attention cache, not a recurrent one",
            )
        self._held = self._decoded

    def _decode(self, tokens: Tokens) -> None:
        batch, count, start = self._batch, len(tokens), self._decoded
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.logits[i] = 0
        batch.logits[count - 1] = start + count == len(self.tokens)
        batch.n_tokens = count
        # A decode that fails half-way leaves some of its tokens in the cache.
        self._held = start + count
        status = self._llama.llama_decode(self._context, batch)
        if status != 0:
            raise InternalError(
                f"llama.cpp failed ({status}) to decode {count} tokens at position {start}: "
                f"{recent_errors() or 'no reason'}"
            )
        self._decoded = start + count

    def _logits_of_row(self, row: int) -> Logits:
        pointer = self._llama.llama_get_logits_ith(self._context, row)
        if not pointer:
            raise InternalError(f"llama.cpp has no logits for row {row}")
        address = ctypes.addressof(pointer.contents)
        # The buffer seldom moves, and every new ctypes view is garbage for the cycle collector.
        if address != self._address:
            array = (ctypes.c_float * self._vocabulary_size).from_address(address)
            self._view = np.ctypeslib.as_array(array)
            self._address = address
        return self._view
