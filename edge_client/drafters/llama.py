"""Drafting with a GGUF model through llama.cpp."""

from __future__ import annotations

from draftwire.errors import InvalidRequest
from edge_client.drafters.llama_context import LlamaContext
from edge_client.drafters.llama_model import LlamaModel
from edge_client.drafters.threaded import ThreadedDrafter, default_threads

__all__ = ["LlamaDrafter", "LlamaModel", "default_threads"]


class LlamaDrafter(ThreadedDrafter):
    """A drafter (`ThreadedDrafter`) with one llama.cpp context."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        threads: int | None = None,
        context: int = 4096,
        batch: int = 32,
    ) -> None:
        """Allocate a context of `context` tokens, at most what the model was trained for.

        `batch` is how many tokens of a prompt are decoded at a time, and so how long a cancelled
        draft may keep the next one waiting. Below 64, llama.cpp's attention on a CPU rounds as it
        does for a single token, and drafts don't depend on how the context came about; from 64
        on a prompt takes an eighth less time (measured). A GPU wants hundreds.
        `threads` defaults to `default_threads()`. Raises `InvalidRequest` for numbers below one
        and `ModelLoadFailed` if there is no memory.
        """
        threads = default_threads() if threads is None else threads
        if threads < 1 or context < 2 or batch < 1:
            raise InvalidRequest("a drafter needs a thread, a batch of 1 and a context of 2 tokens")
        size = min(context, model.trained_context)
        super().__init__(
            lambda: LlamaContext(model, threads=threads, size=size, batch=batch),
            vocabulary_size=model.vocabulary_size,
            max_context=size,
            retain=model.retain,
            release=model.release,
        )
