"""Text to token ids and back with the vocabulary and chat template of a GGUF file."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from draftwire import vocab
from draftwire.errors import InternalError, InvalidRequest
from edge_client.drafters.chat_template import Renderer, rendered
from edge_client.drafters.llama_library import llama

if TYPE_CHECKING:
    from edge_client.drafters.llama_model import LlamaModel

_NO_TOKEN = -1


class LlamaTokenizer:
    """Implements `edge_client.drafter.Tokenizer`; any thread may use it while the model lives."""

    def __init__(self, model: LlamaModel, chat_template: str | None) -> None:
        """Speak the vocabulary of `model`; `chat_template` is Jinja source, None for none."""
        self._llama = llama()
        self._model = model
        self._chat_template = chat_template

    @cached_property
    def fingerprint(self) -> bytes:
        """Vocabulary fingerprint (`draftwire.vocab`), 32 bytes."""
        size, text_of, pointer = self._model.vocabulary_size, self._text, self._vocabulary
        bos, eos = self._llama.llama_vocab_bos(pointer), self._llama.llama_vocab_eos(pointer)
        return vocab.fingerprint(
            [text_of(pointer, token) for token in range(size)],
            bos=bos if self._llama.llama_vocab_get_add_bos(pointer) else None,
            eos=None if eos == _NO_TOKEN else eos,
        )

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that llama.cpp takes for an end of generation: EOS, end of turn and the like."""
        ends, pointer = self._llama.llama_vocab_is_eog, self._vocabulary
        return frozenset(t for t in range(self._model.vocabulary_size) if ends(pointer, t))

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the beginning token the model wants; specials parsed."""
        return self._tokenize(text, add_special=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the answer.

        Raises `InvalidRequest` if there is no template, it is broken or refuses the messages, or
        a message lacks `role` or `content`.
        """
        template = None if self._chat_template is None else lambda: self._renderer
        text = rendered(messages, template, self._model.name)
        # The template writes the beginning token itself: adding it again would double it.
        return self._tokenize(text, add_special=False)

    def piece(self, token: int) -> bytes:
        """The token's text as bytes, possibly part of a character; empty for control tokens.

        Raises `InvalidRequest` for a token outside the vocabulary.
        """
        if not 0 <= token < self._model.vocabulary_size:
            raise InvalidRequest(f"token {token} is not in the vocabulary")
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._llama.llama_token_to_piece(
                self._vocabulary, token, buffer, size, 0, False
            )
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    @property
    def _vocabulary(self) -> Any:
        return self._llama.llama_model_get_vocab(self._model.pointer)

    def _text(self, vocabulary: Any, token: int) -> str:
        text: bytes | None = self._llama.llama_vocab_get_text(vocabulary, token)
        return (text or b"").decode("utf-8", "surrogateescape")

    def _tokenize(self, text: str, *, add_special: bool) -> list[int]:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text is not Unicode: {error}") from error
        size = len(data) + 8  # a token is a byte at least, and special ones are few
        while True:
            tokens = (ctypes.c_int32 * size)()
            count = self._llama.llama_tokenize(
                self._vocabulary, data, len(data), tokens, size, add_special, True
            )
            if count >= 0:
                return list(tokens[:count])
            if -count <= size:
                raise InternalError(f"llama.cpp can't tokenize a text of {len(data)} bytes")
            size = -count

    @cached_property
    def _renderer(self) -> Renderer:
        """Renders messages as Hugging Face does."""
        # Importing llama_cpp has already imported it, and with it Jinja2.
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        vocabulary = self._vocabulary
        bos, eos = self._llama.llama_vocab_bos(vocabulary), self._llama.llama_vocab_eos(vocabulary)
        formatter = Jinja2ChatFormatter(
            template=self._chat_template or "",
            bos_token="" if bos == _NO_TOKEN else self._text(vocabulary, bos),
            eos_token="" if eos == _NO_TOKEN else self._text(vocabulary, eos),
        )

        def render(messages: Sequence[Mapping[str, str]]) -> str:
            return str(formatter(messages=[dict(m) for m in messages]).prompt)  # type: ignore[misc]

        return render
