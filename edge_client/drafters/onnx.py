"""Drafting with an ONNX model through ONNX Runtime."""

from __future__ import annotations

from draftwire.errors import InvalidRequest
from edge_client.drafters.onnx_context import OnnxContext
from edge_client.drafters.onnx_model import OnnxModel
from edge_client.drafters.threaded import ThreadedDrafter

__all__ = ["OnnxDrafter", "OnnxModel"]


class OnnxDrafter(ThreadedDrafter):
    """A drafter (`ThreadedDrafter`) with one cache of an ONNX model, whose threads are its own."""

    def __init__(self, model: OnnxModel, *, context: int = 4096, batch: int = 64) -> None:
        """Allocate a context of `context` tokens, at most what the model was trained for.

        `batch` is how many tokens of a prompt are decoded at a time, and so how long a cancelled
        draft may keep the next one waiting. Raises `InvalidRequest` for numbers below one and
        `ModelLoadFailed` if there is no memory.
        """
        if context < 2 or batch < 1:
            raise InvalidRequest("a drafter needs a batch of 1 and a context of 2 tokens")
        size = min(context, model.trained_context)
        super().__init__(
            lambda: OnnxContext(model, size=size, batch=batch),
            vocabulary_size=model.vocabulary_size,
            max_context=size,
            retain=model.retain,
            release=model.release,
        )
