"""Texts that a target writes alone, each computed once: what a soak's outputs are held against."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from bench._comparison import TIE
from bench._known_text import KnownText
from bench._prompts import PROMPTS
from bench._reference import Reference
from draftwire.acceptance import match_token
from draftwire.testing.demo import demo_model_path
from draftwire.testing.table import TableModel, TableTokenizer
from draftwire.types import SamplingParams, Tokens
from edge_client.drafter import Tokenizer
from edge_client.drafters.llama import LlamaModel

SEED = 20240607
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8, seed=SEED))


class Oracle(Protocol):
    """A target's own texts."""

    @property
    def model(self) -> str:
        """What `serve --model` is given."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Of its vocabulary."""
        ...

    @property
    def texts(self) -> Sequence[KnownText]:
        """What it says after some prompts."""
        ...

    def tie(self, text: KnownText, place: int, token: int) -> bool:
        """Whether the target is as near to `token` there as rounding goes."""
        ...

    def close(self) -> None:
        """Free the tokenizer."""
        ...


class TableOracle:
    """Many random prompts to the verifier's table model (`serve --model table`)."""

    model = "table"

    def __init__(self, *, count: int = 200, tokens: int = 48, seed: int = 0) -> None:
        draw, table = random.Random(seed), TableModel(vocabulary_size=320, eos_rate=0.01)
        self.tokenizer = TableTokenizer(320)
        self.texts = []
        for _ in range(count):
            prompt = tuple(draw.randrange(1, 320) for _ in range(draw.randint(1, 60)))
            sampling = draw.choice(SAMPLINGS)
            text, state = list[int](), table.state_of(prompt)
            while len(text) < tokens:
                text.append(match_token(table.logits(state), len(prompt) + len(text), sampling))
                state = table.extend(state, text[-1])
            self.texts.append(KnownText(prompt, tuple(text), sampling))

    def tie(self, text: KnownText, place: int, token: int) -> bool:  # noqa: ARG002
        """Never: the table is exact."""
        return False

    def close(self) -> None:
        """Nothing to free."""


class DemoOracle:
    """Prompts of many kinds to the demo model, from transformers as it ships."""

    def __init__(self, say: Callable[[str], None], *, tokens: int = 24) -> None:
        self.model = str(demo_model_path())
        self._llama, reference = LlamaModel.load(self.model), Reference(self.model)
        self.tokenizer = self._llama.tokenizer
        self.texts = []
        self._near: dict[tuple[Tokens, SamplingParams, int], int] = {}
        short = [prompt for prompt in PROMPTS if prompt.name != "inventory"]
        for number, (prompt, sampling) in enumerate((p, s) for p in short for s in SAMPLINGS):
            say(f"target alone: text {number + 1} of {len(short) * len(SAMPLINGS)}")
            ids = tuple(prompt.tokens(self.tokenizer))
            text = reference.text(ids, sampling, tokens, ends=False)
            self.texts.append(KnownText(ids, tuple(best.first for best in text), sampling))
            for place, best in enumerate(text):
                if best.margin <= TIE:
                    self._near[ids, sampling, place] = best.second

    def tie(self, text: KnownText, place: int, token: int) -> bool:
        """Whether the two best scores there are equal to within rounding, and it is the second."""
        return self._near.get((tuple(text.prompt), text.sampling, place)) == token

    def close(self) -> None:
        """Free the tokenizer."""
        self._llama.close()
