"""An ONNX language model with its tokenizer, loaded once for any number of drafters.

The model's interface is the one that exporters agree on: `input_ids`, `attention_mask` and mostly
`position_ids` in, `logits` out, and for each layer `past_key_values.N.key` and `.value` in,
`present.N.key` and `.value` out, [1, heads, positions, size].
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwire.errors import InvalidRequest, MissingDependency, ModelLoadFailed
from edge_client.drafters.onnx_tokenizer import OnnxTokenizer, read_json
from edge_client.drafters.shared_model import SharedModel
from edge_client.drafters.threaded import default_threads

CPU = "CPUExecutionProvider"

IN_PLACE = "draftwire.cache"
"""Metadata key of models that write keys and values into the cache they are given ("in place")."""

PAST, PRESENT = "past_key_values.", "present."

_CONTEXT = 4096  # of a model whose files don't say


class OnnxModel(SharedModel):
    """A model in memory. Made by `load`; `tokenizer` speaks its vocabulary.

    `providers` are the execution providers that run it, the preferred one first. Its memory is
    freed when it and every drafter made from it are closed, in whatever order.
    """

    def __init__(self, path: Path, directory: Path, session: Any) -> None:
        """Take over ONNX Runtime's `session`; use `load` instead."""
        super().__init__()
        self._session: Any = session
        self.path = path
        config = read_json(directory / "config.json")
        text = config.get("text_config", config)
        self.name = directory.name
        self.architecture = str(config.get("model_type", "unknown"))
        self.trained_context = int(text.get("max_position_embeddings") or _CONTEXT)
        self.providers: tuple[str, ...] = tuple(session.get_providers())
        self.metadata: dict[str, str] = dict(session.get_modelmeta().custom_metadata_map)
        self.name = self.metadata.get("draftwire.name", self.name)
        self._inputs = {one.name: one for one in session.get_inputs()}
        self._outputs = {one.name: one for one in session.get_outputs()}
        self._check()
        width = self._outputs["logits"].shape[-1]
        self.vocabulary_size = width if isinstance(width, int) else int(text["vocab_size"])
        self.tokenizer = OnnxTokenizer(directory, self.name)

    @classmethod
    def load(
        cls, path: Path | str, *, threads: int | None = None, providers: Sequence[str] = ()
    ) -> OnnxModel:
        """Load an `.onnx` file, or the one of a directory; blocks until it is read.

        It runs on `threads` threads (default: `default_threads()`) and, in the order of
        preference, on these execution providers (default: the processor). Raises
        `ModelLoadFailed`, `InvalidRequest` for a provider that this build lacks, and
        `MissingDependency` without onnxruntime.
        """
        runtime = _runtime()
        path = find(Path(path))
        wanted = [*providers, *([] if CPU in providers else [CPU])]
        available = runtime.get_available_providers()
        if lacking := [one for one in wanted if one not in available]:
            raise InvalidRequest(
                f"this ONNX Runtime has no {', '.join(lacking)}",
                remedy=f"use {' or '.join(available)}, or install a build that has it",
            )
        options = runtime.SessionOptions()
        options.intra_op_num_threads = default_threads() if threads is None else threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what fails is raised; the rest is for its developers
        # Threads that spin between drafts would take the processor, and the battery, from others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = runtime.InferenceSession(str(path), options, providers=wanted)
        except Exception as error:  # ONNX Runtime's errors have no common class of their own
            raise ModelLoadFailed(
                f"{path} can't be loaded: {error}",
                remedy="check that the file and its .data files are complete",
            ) from error
        if (first := session.get_providers()[0]) != wanted[0]:
            raise ModelLoadFailed(
                f"{wanted[0]} can't run here: ONNX Runtime took {first} instead",
                remedy="see that its driver and libraries are installed",
            )
        return cls(path, _directory(path), session)

    @property
    def session(self) -> Any:
        """ONNX Runtime's session. Raises `InternalError` once its memory is freed."""
        if self._session is None:
            raise self._is_closed()
        return self._session

    @property
    def in_place(self) -> bool:
        """Whether it writes into the cache it is given instead of returning a longer one."""
        return self.metadata.get(IN_PLACE) == "in place"

    @property
    def wants_positions(self) -> bool:
        """Whether it has an input `position_ids`."""
        return "position_ids" in self._inputs

    @property
    def caches(self) -> dict[str, tuple[int, int, str]]:
        """Of each cache input: heads, size of a head, and type ("tensor(float)" or the like)."""
        return {
            name: (one.shape[1], one.shape[3], one.type)
            for name, one in self._inputs.items()
            if name.startswith(PAST)
        }

    def _free(self) -> None:
        self._session = None

    def _check(self) -> None:
        """Refuse what is no decoder with a cache of keys and values."""
        known = {"input_ids", "attention_mask", "position_ids"}
        past = [name for name in self._inputs if name.startswith(PAST)]
        strange = sorted(set(self._inputs) - known - set(past))
        lacking = {"input_ids", "attention_mask"} - set(self._inputs)
        lacking |= {"logits", *(name.replace(PAST, PRESENT) for name in past)} - set(self._outputs)
        if strange or lacking or not past:
            what = f"unknown inputs {strange}" if strange else f"no {sorted(lacking)}"
            if not past:
                what = "no cache of keys and values"
            raise ModelLoadFailed(
                f"{self.path} can't draft: it has {what}",
                remedy="export it with draftwire export-onnx, or as text generation with past",
            )


def find(path: Path) -> Path:
    """The `.onnx` file that a path means: itself, or the only one of a directory or its `onnx/`.

    Raises `ModelLoadFailed` if there is none, or several without a `model.onnx` among them.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise ModelLoadFailed(
            f"there is no {path}", remedy="give an .onnx file, or the directory it is in"
        )
    for folder in (path, path / "onnx"):
        files = sorted(folder.glob("*.onnx"))
        if (folder / "model.onnx") in files:
            return folder / "model.onnx"
        if len(files) == 1:
            return files[0]
        if files:
            raise ModelLoadFailed(
                f"{folder} has {len(files)} models: {', '.join(file.name for file in files)}",
                remedy="name the file",
            )
    raise ModelLoadFailed(f"{path} has no .onnx file", remedy="see draftwire export-onnx")


def _directory(path: Path) -> Path:
    """Where the tokenizer of a model file is: beside it, or above a folder named onnx."""
    beside = path.parent
    above = beside.name == "onnx" and not (beside / "tokenizer.json").is_file()
    return beside.parent if above else beside


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            f"onnxruntime, which runs .onnx models, can't be imported: {error}",
            remedy="pip install 'draftwire[edge-onnx]'",
        ) from error
    return onnxruntime
