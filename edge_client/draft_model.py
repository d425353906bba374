"""Which library runs a draft model: chosen by the kind of file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from draftwire.errors import InternalError, InvalidRequest, ModelLoadFailed
from edge_client.drafter import Tokenizer
from edge_client.drafters.threaded import ThreadedDrafter


class DraftModel(Protocol):
    """A draft model in memory.

    Its memory is freed when it and every drafter made from it are closed, in whatever order.
    """

    path: Path
    name: str
    trained_context: int
    vocabulary_size: int

    @property
    def tokenizer(self) -> Tokenizer:
        """Speaks its vocabulary, while the model is open."""
        ...

    def close(self) -> None:
        """Give up the model. May be called again."""
        ...


def load_model(
    path: str | Path, *, threads: int | None = None, providers: Sequence[str] = ()
) -> DraftModel:
    """Load a GGUF file in llama.cpp, or an `.onnx` file or the directory of one in ONNX Runtime.

    `threads` and `providers` (execution providers in the order of preference) are ONNX Runtime's.
    Raises what `LlamaModel.load` and `OnnxModel.load` raise, and `InvalidRequest` for providers
    of a GGUF file.
    """
    path = Path(path).expanduser()
    check_path(path)
    if path.suffix == ".onnx" or path.is_dir():
        from edge_client.drafters.onnx_model import OnnxModel

        return OnnxModel.load(path, threads=threads, providers=providers)
    if providers:
        raise InvalidRequest(
            "llama.cpp has no execution providers", remedy="leave them out, or use an .onnx model"
        )
    from edge_client.drafters.llama_model import LlamaModel

    return LlamaModel.load(path)


def check_path(path: Path) -> None:
    """Raise `ModelLoadFailed` where nothing is."""
    if not path.exists():
        raise ModelLoadFailed(
            f"there is no file {path}",
            remedy="give the path of a .gguf or .onnx file, or see draftwire models list",
        )


def drafter_of(
    model: DraftModel, *, threads: int | None = None, context: int = 4096
) -> ThreadedDrafter:
    """A drafter on a loaded model: `threads` are llama.cpp's; `context` is in tokens."""
    from edge_client.drafters.llama_model import LlamaModel
    from edge_client.drafters.onnx_model import OnnxModel

    if isinstance(model, LlamaModel):
        from edge_client.drafters.llama import LlamaDrafter

        return LlamaDrafter(model, threads=threads, context=context)
    if isinstance(model, OnnxModel):
        from edge_client.drafters.onnx import OnnxDrafter

        return OnnxDrafter(model, context=context)
    raise InternalError(f"nothing drafts with a {type(model).__name__}")
