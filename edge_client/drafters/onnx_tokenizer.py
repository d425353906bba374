"""Text to token ids and back with the `tokenizer.json` beside an ONNX model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from draftwire import vocab
from draftwire.errors import InvalidRequest, MissingDependency, ModelLoadFailed
from draftwire.pieces import token_pieces
from draftwire.reason import reason
from edge_client.drafters.chat_template import Renderer, rendered, renderer


class OnnxTokenizer:
    """Implements `edge_client.drafter.Tokenizer`; any thread may use it."""

    def __init__(self, directory: Path, name: str) -> None:
        """Read a Hugging Face directory's tokenizer files; the model is called `name`.

        Raises `ModelLoadFailed` if they are missing, broken or write tokens in an unknown way,
        `MissingDependency` without the package `tokenizers`.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingDependency(
                "reading tokenizer.json takes the package tokenizers",
                remedy="pip install 'draftwire[edge-onnx]'",
            ) from error
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadFailed(
                f"{directory} has no tokenizer.json",
                remedy="put the files of the model's tokenizer beside the .onnx file",
            )
        self._name = name
        self._config = read_json(directory / "tokenizer_config.json")
        self._ends = [
            read_json(directory / file).get("eos_token_id")
            for file in ("generation_config.json", "config.json")
        ]
        self._template = self._chat_template(directory)
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ModelLoadFailed(f"{path} can't be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._pieces = self._read_pieces(path)

    @cached_property
    def fingerprint(self) -> bytes:
        """Vocabulary fingerprint (`draftwire.vocab`), 32 bytes."""
        # What a tokenizer puts before a prompt shows on the empty one.
        prefix, bos = self._tokenizer.encode("").ids[:1], self._id("bos_token")
        return vocab.fingerprint(
            self._strings, bos=bos if bos in prefix else None, eos=self._id("eos_token")
        )

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that the model's files name as an end of generation."""
        ends = {self._id("eos_token")}
        for given in self._ends:
            ends |= set(given) if isinstance(given, list) else {given}
        return frozenset(end for end in ends if isinstance(end, int))

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template; None if there is none."""
        return self._template

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the beginning token the model wants; specials parsed."""
        return self._tokenize(text, add_special=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the answer.

        Raises `InvalidRequest` if there is no template, it is broken or refuses the messages, or
        a message lacks `role` or `content`.
        """
        template = None if self._template is None else lambda: self._renderer
        text = rendered(messages, template, self._name)
        # The template writes the beginning token itself: adding it again would double it.
        return self._tokenize(text, add_special=False)

    def piece(self, token: int) -> bytes:
        """The token's text as bytes, possibly part of a character; empty for control tokens.

        Raises `InvalidRequest` for a token outside the vocabulary.
        """
        if not 0 <= token < len(self._pieces):
            raise InvalidRequest(f"token {token} is not in the vocabulary")
        return self._pieces[token]

    def _tokenize(self, text: str, *, add_special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text is not Unicode: {error}") from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special).ids)

    @cached_property
    def _strings(self) -> list[str | None]:
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return [self._tokenizer.id_to_token(token) for token in range(size)]

    def _read_pieces(self, path: Path) -> list[bytes]:
        added = {
            token: "" if one.special else one.content
            for token, one in self._tokenizer.get_added_tokens_decoder().items()
        }
        decoder = json.loads(self._tokenizer.to_str()).get("decoder")
        pieces = token_pieces(self._strings, added, decoder)
        if pieces is None:
            raise ModelLoadFailed(
                f"{path} writes its tokens in a way that is not known",
                remedy="use a model with a byte-level or a byte-fallback tokenizer",
            )
        return pieces

    def _text(self, name: str) -> str:
        """A special token's text, empty if there is none."""
        told = self._config.get(name)
        return str((told or {}).get("content", "") if isinstance(told, dict) else told or "")

    def _id(self, name: str) -> int | None:
        text = self._text(name)
        token: int | None = self._tokenizer.token_to_id(text) if text else None
        return token

    def _chat_template(self, directory: Path) -> str | None:
        file = directory / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        told = self._config.get("chat_template")
        if isinstance(told, list):  # several by name
            told = {one["name"]: one["template"] for one in told}.get("default")
        return told

    @cached_property
    def _renderer(self) -> Renderer:
        return renderer(
            self._template or "", bos=self._text("bos_token"), eos=self._text("eos_token")
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Raises `ModelLoadFailed`."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadFailed(f"{path} can't be read: {reason(error)}") from error
    if not isinstance(told, dict):
        raise ModelLoadFailed(f"{path} holds no JSON object")
    return told
