"""A forward in which a token's result depends on the tokens before it alone, bit for bit.

Products of matrices round differently with the number of rows, so that in a packed pass the last
bits of a session's logits and KV depend on what else is in it. Here nothing has a shape that
depends on the pass:

- A pass is split into forwards of exactly `ROWS` rows, the last one padded, so that each product
  is computed in one way for ever.
- Each token attends in a call of its own (`attention.fixed`).
- Activation functions take a row at a time: torch divides large tensors among threads where it
  will, and computes the odd elements at the seams by another formula.

What a decoder does besides is exact, or stays within a row. That a row's place among the rows
does not matter either is how the libraries work today; `check_places` tries it where it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2CLS

from cloud_verifier.attention import Backend, FixedPlan, PagedKV, Span
from cloud_verifier.forward import Forward, PackedForward
from cloud_verifier.rollback import PROBE
from draftwire.errors import InvalidRequest, ModelLoadFailed

ROWS = 16
"""Rows of a forward."""

MARK = f"deterministic-{ROWS}"
"""What the mode adds to a target's identity: each number of rows rounds in its own way."""

_ACTIVATIONS: tuple[Any, ...] = tuple(
    {kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()}
)


FIXED = Backend(name="fixed", planner=partial(FixedPlan, rows=ROWS))
"""The attention of the mode. It needs a `PagedKV` with a scratch block."""


def check_device(device: torch.device) -> None:
    """Raise `InvalidRequest` for a device that the mode does not serve."""
    if device.type != "cpu":
        raise InvalidRequest(
            f"the deterministic mode runs on CPUs only, not on {device}",
            remedy="choose device cpu, or serve without the deterministic mode",
        )


def check_settings(attention: str, cuda_graphs: bool | None) -> None:
    """Raise `InvalidRequest` for a choice that the mode does not leave."""
    if attention != "auto" or cuda_graphs:
        raise InvalidRequest(
            "the deterministic mode has an attention of its own, and no CUDA graphs",
            remedy="leave both to it, or serve without the deterministic mode",
        )


class FixedForward:
    """Runs a pass as forwards of `ROWS` rows each, on a CPU. `kv` is one planned by `FIXED`."""

    def __init__(self, forward: Forward, model: PreTrainedModel, kv: PagedKV) -> None:
        self._forward = forward
        self._kv = kv
        self._activations = [m for m in model.modules() if isinstance(m, _ACTIVATIONS)]

    def __call__(
        self, tokens: Sequence[int], spans: Sequence[Span], keep: Sequence[int]
    ) -> torch.Tensor:
        """Feed `tokens`, which `spans` divide in order; logits of those at `keep`, `[N, vocab]`.

        `keep` rises. Writes the KV of every token.
        """
        logits, first = [], 0
        for part in _split(spans):
            end = first + sum(span.length for span in part)
            kept = [token - first for token in keep if first <= token < end]
            logits.append(self._run(tokens[first:end], part, kept))
            first = end
        return torch.cat(logits)

    def _run(self, tokens: Sequence[int], spans: Sequence[Span], kept: list[int]) -> torch.Tensor:
        """One forward of at most `ROWS` tokens; logits `[len(kept), vocab]`."""
        padded = [*tokens, *[0] * (ROWS - len(tokens))]
        # The output head is a product like the others: of all rows, or of none.
        computed = torch.arange(ROWS if kept else 0)
        with _row_by_row(self._activations):
            logits = self._forward.run(self._kv.begin(spans), torch.tensor([padded]), computed)
        return logits[kept] if kept else logits


def check(forward: PackedForward, model: PreTrainedModel, name: str) -> None:
    """Raise `ModelLoadFailed` where a row's result would depend on others after all.

    Overwrites KV block 0.
    """
    if any(getattr(module, "num_experts", 0) > 1 for module in model.modules()):
        raise ModelLoadFailed(
            f"{name} can't be deterministic: its experts compute as many rows at once as there are "
            "tokens that chose them",
            remedy="choose a model without experts, or serve it without the deterministic mode",
        )
    with torch.inference_mode():
        held = check_places(forward, PROBE)
    if not held:
        raise ModelLoadFailed(
            f"{name} is not deterministic on {torch.get_num_threads()} threads of this machine",
            remedy="try fewer threads, or serve it without the deterministic mode",
        )


def check_places(forward: PackedForward, tokens: Sequence[int]) -> bool:
    """Whether `tokens`, at least two, give the same logits wherever in a forward they stand.

    Overwrites KV block 0 and needs no other.
    """
    count, block = len(tokens), (0,)
    for token in tokens:
        everywhere = forward([token] * ROWS, [Span(0, 1, block)] * ROWS, range(ROWS))
        if bool((everywhere != everywhere[0]).any()):
            return False
    alone = [forward([token], [Span(i, 1, block)], [0]) for i, token in enumerate(tokens)]
    company = ROWS - count
    crowd = forward(
        [*[tokens[-1]] * company, *tokens],
        [*[Span(count, 1, block)] * company, Span(0, count, block)],
        range(company, ROWS),
    )
    return torch.equal(torch.cat(alone), crowd)


def _split(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Parts of `spans`, in order, of `ROWS` tokens each; the last may have fewer."""
    part: list[Span] = []
    room = ROWS
    for span in spans:
        start = span.start
        while start < span.end:
            length = min(room, span.end - start)
            part.append(Span(start, length, span.blocks))
            start, room = start + length, room - length
            if not room:
                yield part
                part, room = [], ROWS
    if part:
        yield part


@contextmanager
def _row_by_row(activations: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Let activation functions take the rows of `[1, rows, D]` in turn."""

    def forward(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        rows = torch.split(x, 1, dim=1)
        return torch.cat([type(module).forward(module, row) for row in rows], dim=1)

    for module in activations:
        module.forward = forward.__get__(module)
    try:
        yield
    finally:
        for module in activations:
            del module.forward
