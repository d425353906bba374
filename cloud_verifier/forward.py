"""One packed pass of the model: tokens of many sessions in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from transformers import PreTrainedModel

from cloud_verifier.attention import KV, PagedKV, PassPlan, Span

PackedForward: TypeAlias = Callable[[Sequence[int], Sequence[Span], Sequence[int]], torch.Tensor]
"""The call of `Forward`, for those that run passes in another way."""


class Forward:
    """Runs the model over a pass of whatever shape it has."""

    def __init__(self, model: PreTrainedModel, kv: PagedKV) -> None:
        self._model = model
        self._kv = kv

    def __call__(
        self, tokens: Sequence[int], spans: Sequence[Span], keep: Sequence[int]
    ) -> torch.Tensor:
        """Feed `tokens`, which `spans` divide in order; logits of those at `keep`, `[N, vocab]`.

        Writes the KV of every token.
        """
        device = self._model.device
        return self.run(
            self._kv.begin(spans),
            torch.tensor([tokens]).to(device, non_blocking=True),
            torch.tensor(keep, dtype=torch.long).to(device, non_blocking=True),
        )

    def run(self, plan: PassPlan, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """The same with a plan that the `PagedKV` has, `tokens` `[1, ΣT]` and `keep` `[N]`."""
        output = self._model(
            input_ids=tokens,
            position_ids=plan.positions,
            cache=self._kv,
            use_cache=True,
            logits_to_keep=keep,
            **{KV: self._kv},
        )
        logits: torch.Tensor = output.logits[0]
        return logits
