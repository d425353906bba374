"""One packed pass of the model: tokens of many sessions in, logits out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from cloud_verifier.attention import KV, PagedKV
from cloud_verifier.packing import Span


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
        model = self._model
        plan = self._kv.begin(spans)
        output = model(
            input_ids=torch.tensor([tokens], device=model.device),
            position_ids=plan.positions,
            cache=self._kv,
            use_cache=True,
            logits_to_keep=torch.tensor(keep, dtype=torch.long, device=model.device),
            **{KV: self._kv},
        )
        logits: torch.Tensor = output.logits[0]
        return logits
