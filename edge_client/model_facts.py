"""What a model's files say of it, and whether a draft model fits a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftwire.errors import InvalidRequest
from draftwire.types import ModelCard
from edge_client.draft_model import load_model
from edge_client.drafter import Tokenizer
from edge_client.drafters.llama_model import LlamaModel
from edge_client.drafters.onnx_model import OnnxModel
from edge_client.drafters.onnx_tokenizer import OnnxTokenizer, read_json

_CONVERSATIONS = (
    [("user", "What is the capital of France?")],
    [("system", "Be brief."), ("user", "Hi  there\n"), ("assistant", "Yes?"), ("user", "Ü 🚀")],
)
"""Conversations in which two chat templates that differ will mostly show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model by its files, or by what a verifier says of it; None is what they don't say.

    `fingerprint` is hexadecimal, `context` in tokens, `size_bytes` of all its files. `chat` holds
    the token ids of two conversations, None for each that the template refuses. `title` is what a
    GGUF file calls the model in its metadata.
    """

    source: str
    kind: str
    name: str
    vocabulary_size: int
    fingerprint: str
    context: int | None = None
    title: str | None = None
    parameters: int | None = None
    quantization: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    size_bytes: int | None = None
    providers: tuple[str, ...] = ()
    chat_template: bool | None = None
    chat: tuple[tuple[int, ...] | None, ...] | None = None

    def as_json(self) -> Mapping[str, Any]:
        """What a person or a script wants of it."""
        facts = asdict(self)
        del facts["chat"]
        return facts


def facts_of(path: str | Path) -> ModelFacts:
    """Facts of a GGUF file, an ONNX model or a Hugging Face directory, whose weights stay unread.

    Raises what loading it raises.
    """
    path = Path(path).expanduser()
    if path.is_dir() and not [*path.glob("*.onnx"), *path.glob("onnx/*.onnx")]:
        return _directory(path)
    model = load_model(path, threads=1)
    try:
        if isinstance(model, OnnxModel):
            files = [*model.path.parent.glob(f"{model.path.name}*")]
            kind, quantization = "ONNX", model.metadata.get("draftwire.weights")
            providers, template = model.providers, model.tokenizer.chat_template is not None
            title = parameters = None
        else:
            assert isinstance(model, LlamaModel)  # noqa: S101 (there are two kinds)
            files, kind, quantization = [model.path], "GGUF", model.quantization
            title, parameters = model.metadata("general.name"), model.parameters
            providers, template = (), model.metadata("tokenizer.chat_template") is not None
        return ModelFacts(
            source=str(path),
            kind=kind,
            name=model.name,
            vocabulary_size=model.vocabulary_size,
            context=model.trained_context,
            title=title,
            parameters=parameters,
            quantization=quantization,
            size_bytes=sum(file.stat().st_size for file in files),
            providers=providers,
            chat_template=template,
            **_of_tokenizer(model.tokenizer),
        )
    finally:
        model.close()


def facts_of_card(card: ModelCard, address: str) -> ModelFacts:
    """Facts of the target that a verifier serves; its template it does not tell."""
    return ModelFacts(
        source=address,
        kind="verifier",
        name=card.target.model,
        vocabulary_size=card.vocabulary_size,
        fingerprint=card.target.vocabulary_fingerprint.hex(),
        context=card.limits.max_context,
        quantization=card.target.dtype,
        eos_token_ids=tuple(sorted(card.target.eos_token_ids)),
    )


def _directory(path: Path) -> ModelFacts:
    config = read_json(path / "config.json")
    text = config.get("text_config", config)
    tokenizer = OnnxTokenizer(path, path.name)
    return ModelFacts(
        source=str(path),
        kind="Hugging Face",
        name=path.name,
        vocabulary_size=int(text.get("vocab_size") or 0),
        context=text.get("max_position_embeddings"),
        quantization=config.get("dtype") or config.get("torch_dtype"),
        size_bytes=sum(file.stat().st_size for file in path.glob("*.safetensors")),
        chat_template=tokenizer.chat_template is not None,
        **_of_tokenizer(tokenizer),
    )


def _of_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "fingerprint": tokenizer.fingerprint.hex(),
        "eos_token_ids": tuple(sorted(tokenizer.eos_token_ids)),
        "chat": tuple(_rendered(tokenizer, conversation) for conversation in _CONVERSATIONS),
    }


def _rendered(tokenizer: Tokenizer, turns: list[tuple[str, str]]) -> tuple[int, ...] | None:
    try:
        return tuple(
            tokenizer.encode_chat([{"role": role, "content": said} for role, said in turns])
        )
    except InvalidRequest:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a draft model can draft for a target: what speaks against it, and what to know."""

    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems


def fit(draft: ModelFacts, target: ModelFacts) -> Fit:
    """Compare vocabulary, chat template, end tokens and context."""
    problems, remarks = [], []
    if draft.fingerprint != target.fingerprint:
        sizes = f"{draft.vocabulary_size} and {target.vocabulary_size} tokens"
        problems.append(
            f"the vocabularies differ ({sizes}): a token id does not mean the same to both, or "
            "their beginning or end tokens are others"
        )
        return Fit(problems=tuple(problems), remarks=())
    if draft.chat is not None and target.chat is not None and draft.chat != target.chat:
        if not draft.chat_template:
            problems.append("the draft model has no chat template, and prompts are written here")
        elif not target.chat_template:
            remarks.append("the target has no chat template: the draft model's is used")
        else:
            problems.append(
                "the chat templates differ, and prompts are written with the draft model's"
            )
    if target.chat is None:
        remarks.append("the verifier does not tell its chat template: give its files to compare")
    if unknown := sorted(set(target.eos_token_ids) - set(draft.eos_token_ids)):
        remarks.append(f"the target ends at {unknown}, too: the draft model may draft beyond")
    if draft.context and target.context and draft.context < target.context:
        remarks.append(
            f"the draft model knows contexts of {draft.context} tokens, the target of "
            f"{target.context}: from there on the cloud decodes alone"
        )
    return Fit(problems=tuple(problems), remarks=tuple(remarks))
