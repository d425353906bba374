"""The back end for every device: torch's scaled-dot-product attention over gathered KV."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from cloud_verifier.attention.grouped import GroupedPlan
from cloud_verifier.attention.spans import Index


class SdpaPlan(GroupedPlan[torch.Tensor]):
    """Masks are additive, `[B, 1, rep·T, L]`.

    The query heads that share a key head are folded into rows: repeating the mask for them costs
    less than repeating keys and values.
    """

    def _mask(
        self, query: Index, key: Index, window: int | None, repeats: int
    ) -> torch.Tensor | None:
        hidden = key[:, None, :] > query[:, :, None]  # [B, T, L]
        if window is not None:
            hidden |= key[:, None, :] <= query[:, :, None] - window
        if not hidden.any():
            return None
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        on_device = torch.from_numpy(hidden).to(self._device, non_blocking=True)
        mask.masked_fill_(on_device, float("-inf"))
        return mask.repeat(1, repeats, 1)[:, None]

    def _attention(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
        softcap: float | None,
    ) -> torch.Tensor:
        batch, tokens = query.shape[:2]
        heads = keys.shape[1]
        # Query head h·rep + r reads key head h.
        query = query.view(batch, tokens, heads, -1, query.shape[-1]).permute(0, 2, 3, 1, 4)
        repeats = query.shape[2]
        query = query.reshape(batch, heads, repeats * tokens, -1)
        if softcap is None:
            out = scaled_dot_product_attention(query, keys, values, mask, scale=scaling)
        else:
            out = softcapped(query, keys, values, mask, scaling, softcap)
        out = out.reshape(batch, heads, repeats, tokens, -1).permute(0, 3, 1, 2, 4)
        return out.reshape(batch, tokens, heads * repeats, -1)


def softcapped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """Attention with scores bounded by `softcap · tanh(score / softcap)`, as Gemma 2 has it."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = softcap * torch.tanh(query @ keys.transpose(2, 3) * (scale / softcap))
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype) @ values
