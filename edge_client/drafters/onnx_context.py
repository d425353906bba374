"""An ONNX model's cache: which tokens it holds, and the logits after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwire.errors import InternalError, InvalidRequest, ModelLoadFailed
from edge_client.drafters.onnx_model import PAST, PRESENT
from edge_client.drafters.threaded import OVERTAKEN, Logits

if TYPE_CHECKING:
    from edge_client.drafters.onnx_model import OnnxModel

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxContext:
    """A `Context`: tokens, and how many of them the cache is right for.

    Rolling back is counting less: what the model is told to look at ends where the count does. A
    model that writes in place then overwrites what lies beyond; of one that returns a longer
    cache each time, the part to keep is copied before the next pass.
    """

    def __init__(self, model: OnnxModel, *, size: int, batch: int) -> None:
        """Allocate the cache for `size` tokens. Raises `ModelLoadFailed` if it can't be."""
        import onnxruntime

        self.tokens: list[int] = []
        self._decoded = 0
        self._batch_size = min(batch, size)
        self._model = model
        self._values: Any = onnxruntime.OrtValue
        self._session = model.session
        self._binding: Any = self._session.io_binding()
        self._positions = np.arange(size, dtype=np.int64)[None]  # [1, size]
        self._mask = np.ones((1, size), np.int64)
        self._in_place = model.in_place
        length = size if self._in_place else 0
        try:
            caches = {
                name: np.zeros((1, heads, length, width), _TYPES[kind])
                for name, (heads, width, kind) in model.caches.items()
            }
        except KeyError as error:
            raise ModelLoadFailed(
                f"{model.path} keeps its cache as {error}", remedy="export it in float32 or float16"
            ) from error
        except MemoryError as error:
            raise ModelLoadFailed(
                f"no context of {size} tokens for {model.path}", remedy="ask for a shorter context"
            ) from error
        self._binding.bind_output("logits", "cpu")  # the first of its outputs from here on
        self._past = {
            name: self._values.ortvalue_from_numpy(array) for name, array in caches.items()
        }
        for name, value in self._past.items():
            self._binding.bind_ortvalue_input(name, value)
            if self._in_place:
                self._binding.bind_ortvalue_output(name.replace(PAST, PRESENT), value)
        self._held = 0  # positions of a cache that grows

    def truncate(self, keep: int) -> None:
        """Forget the tokens from position `keep` on."""
        del self.tokens[keep:]
        self._decoded = min(self._decoded, keep)

    def logits(self, abandoned: Callable[[], bool] = lambda: False) -> Logits:
        """Logits after the last token, [vocabulary].

        Decodes what the cache is owed, at most a batch at a time, and gives up between two
        batches when `abandoned` says so. Raises `InvalidRequest` for an empty context and
        `InternalError` if decoding fails; the next call then finds the context as it was.
        """
        if not self.tokens:
            raise InvalidRequest("an empty context predicts nothing", remedy="give a prompt")
        # Logits come from decoding: if all is decoded, the last token is decoded again.
        self._decoded = min(self._decoded, len(self.tokens) - 1)
        while True:
            if abandoned():
                raise InternalError(OVERTAKEN)
            logits = self._decode(self.tokens[self._decoded : self._decoded + self._batch_size])
            if self._decoded == len(self.tokens):
                return logits

    def close(self) -> None:
        """Free the cache. May be called again."""
        self._binding = self._session = None
        self._past = {}

    def _decode(self, tokens: list[int]) -> Logits:
        start, end = self._decoded, self._decoded + len(tokens)
        if not self._in_place:
            self._keep(start)
        ids = np.array([tokens], np.int64)  # [1, tokens]
        # The binding keeps addresses only: these arrays live until the pass is over.
        mask = np.ascontiguousarray(self._mask[:, :end])
        positions = np.ascontiguousarray(self._positions[:, start:end])
        self._binding.bind_cpu_input("input_ids", ids)
        self._binding.bind_cpu_input("attention_mask", mask)
        # Bound anew, for it keeps the length it had in the last pass.
        self._binding.bind_output("logits", "cpu")
        if self._model.wants_positions:
            self._binding.bind_cpu_input("position_ids", positions)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's errors have no common class of their own
            raise InternalError(
                f"ONNX Runtime failed to decode {len(tokens)} tokens at position {start}: {error}"
            ) from error
        outputs = self._binding.get_outputs()
        if not self._in_place:
            self._past = dict(zip(self._past, outputs[1:], strict=True))
            self._held = end
        self._decoded = end
        logits: Logits = outputs[0].numpy()[0, -1].astype(np.float32, copy=False)
        return logits

    def _keep(self, positions: int) -> None:
        """Have the next pass begin with so many positions of the cache, and return a longer one."""
        for name, value in self._past.items():
            if self._held > positions:
                kept = np.ascontiguousarray(value.numpy()[:, :, :positions])
                self._past[name] = value = self._values.ortvalue_from_numpy(kept)
            self._binding.bind_ortvalue_input(name, value)
            self._binding.bind_output(name.replace(PAST, PRESENT), "cpu")
        self._held = positions
