"""The weights and vocabulary of a GGUF file, loaded once for any number of drafters."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from draftwire.errors import CannotRollBack, ModelLoadFailed
from edge_client.drafters.llama_context import LlamaContext
from edge_client.drafters.llama_library import llama, recent_errors, signals_later
from edge_client.drafters.llama_tokenizer import LlamaTokenizer
from edge_client.drafters.shared_model import SharedModel


class LlamaModel(SharedModel):
    """A model in memory. Made by `load`; `tokenizer` speaks its vocabulary.

    Its memory is freed when it and every drafter made from it are closed, in whatever order.
    """

    def __init__(self, path: Path, pointer: Any) -> None:
        """Take over llama.cpp's model `pointer`; use `load` instead."""
        super().__init__()
        self._llama = llama()
        self._pointer = pointer
        self.path = path
        # The file's own name: `general.name` is often what it was called in training.
        self.name = path.stem
        self.parameters = int(self._llama.llama_model_n_params(pointer))
        self.trained_context = int(self._llama.llama_model_n_ctx_train(pointer))
        vocabulary = self._llama.llama_model_get_vocab(pointer)
        self.vocabulary_size = int(self._llama.llama_vocab_n_tokens(vocabulary))
        template = self._llama.llama_model_chat_template(pointer, None)
        self.tokenizer = LlamaTokenizer(self, template.decode() if template else None)

    @classmethod
    def load(cls, path: Path | str, *, gpu_layers: int = 0) -> LlamaModel:
        """Load a GGUF file; blocks until it is mapped and has been tried.

        `gpu_layers` many layers go to the GPU that llama.cpp was built for, −1 for all.
        Raises `ModelLoadFailed` for a file that is missing, broken or no decoder,
        `CannotRollBack` for a model whose cache can't be rewound (recurrent and hybrid ones),
        `MissingDependency` without llama-cpp-python.
        """
        library, path = llama(), Path(path)
        if not path.is_file():
            raise ModelLoadFailed(f"there is no file {path}", remedy="give the path of a GGUF file")
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        recent_errors()
        with signals_later():
            pointer = library.llama_model_load_from_file(str(path).encode(), parameters)
        if not pointer:
            raise ModelLoadFailed(
                f"{path} can't be loaded: {recent_errors() or 'llama.cpp gives no reason'}",
                remedy="give a GGUF file of a model that llama.cpp knows",
            )
        model = cls(path, pointer)
        try:
            model._try_out()
        except BaseException:
            model.close()
            raise
        return model

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as text, None if there is no such key."""
        buffer = ctypes.create_string_buffer(256)
        length = self._llama.llama_model_meta_val_str(
            self.pointer, key.encode(), buffer, len(buffer)
        )
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    @property
    def quantization(self) -> str:
        """What its weights are kept in, in llama.cpp's words."""
        buffer = ctypes.create_string_buffer(256)
        self._llama.llama_model_desc(self.pointer, buffer, len(buffer))
        # Family, size, weights; the size is guessed from the number of layers.
        return buffer.value.decode("utf-8", "replace").split(" ", 2)[-1]

    @property
    def pointer(self) -> Any:
        """llama.cpp's model. Raises `InternalError` once its memory is freed."""
        if self._pointer is None:
            raise self._is_closed()
        return self._pointer

    def _free(self) -> None:
        self._llama.llama_model_free(self._pointer)
        self._pointer = None

    def _try_out(self) -> None:
        """Decode and rewind a few tokens, so that a model unfit to draft is refused at load."""
        if not self._llama.llama_model_has_decoder(self.pointer) or (
            self._llama.llama_model_has_encoder(self.pointer)
        ):
            raise ModelLoadFailed(
                f"{self.path} holds no decoder-only language model, which drafting needs"
            )
        context = LlamaContext(self, threads=1, size=64, batch=8)
        try:
            context.tokens += [0, 0, 0, 0]
            context.logits()
            context.truncate(2)
            context.logits()
        except CannotRollBack as error:
            raise CannotRollBack(
                f"{self.path}, a {self.metadata('general.architecture')} model, "
                "can't draft: its cache can't be rewound",
                remedy=error.remedy,
            ) from None
        finally:
            context.close()
