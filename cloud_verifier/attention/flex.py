"""The back end for soft-capped models on CUDA: FlexAttention over gathered KV.

torch compiles one fused kernel for cap and mask, where plain operators would write out all scores.
On a CPU it runs without being compiled: right, but slow.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask

from cloud_verifier.attention.grouped import GroupedPlan
from cloud_verifier.attention.spans import Index


def refusal(device: torch.device) -> str | None:
    """Why this back end can't run on a device; None if it can."""
    if device.type not in ("cuda", "cpu"):
        return f"it is not known to run on {device.type}"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "it needs Triton to compile with"
    return None


class FlexPlan(GroupedPlan[BlockMask]):
    """Masks are block masks over a group's padded queries and keys."""

    def _mask(self, query: Index, key: Index, window: int | None, repeats: int) -> BlockMask:
        del repeats
        at = self._tensor(query)  # [B, T]
        low = self._tensor(np.ascontiguousarray(key[:, 0]))  # [B]

        def visible(
            b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
        ) -> torch.Tensor:
            del h
            position, seen = at[b, q_idx], low[b] + kv_idx
            if window is None:
                return seen <= position
            return (seen <= position) & (seen > position - window)

        return flex.create_block_mask(
            visible,
            B=len(query),
            H=None,
            Q_LEN=query.shape[1],
            KV_LEN=key.shape[1],
            device=self._device,
        )

    def _attention(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: BlockMask | None,
        scaling: float | None,
        softcap: float | None,
    ) -> torch.Tensor:
        cap = None if softcap is None else _capped(softcap)
        operator = _compiled() if query.device.type == "cuda" else _plain
        out: torch.Tensor = operator(
            query.transpose(1, 2),
            keys,
            values,
            score_mod=cap,
            block_mask=mask,
            scale=scaling,
            enable_gqa=query.shape[2] != keys.shape[1],
        )
        return out.transpose(1, 2)


@cache
def _capped(softcap: float) -> Callable[..., torch.Tensor]:
    def cap(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        del b, h, q, k
        return softcap * torch.tanh(score / softcap)

    return cap


@cache
def _compiled() -> Callable[..., Any]:
    # Sizes change from pass to pass, and each new constant would be compiled for.
    return torch.compile(flex.flex_attention, dynamic=True)


def _plain(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it isn't compiled
        return flex.flex_attention(*args, **kwargs)
