"""Packed ragged attention: many sessions' tokens in one `[1, ΣT]` pass over a paged KV pool.

transformers models run as they are: they get `PagedKV` where they expect a cache, and
`packed_attention` as their attention function, which finds the same `PagedKV` in an extra keyword
argument of `model(...)`. A pass costs, per layer and group of like spans, one gather and one
scaled-dot-product attention; indices and masks are the plan's (`packing`), built once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from cloud_verifier.packing import FOLD_LIMIT, Group, PassPlan, Span

IMPLEMENTATION = "draftwire_packed"
"""Name under which `register` makes the attention known to transformers."""

KV = "draftwire_kv"
"""Keyword argument of `model(...)` that carries the `PagedKV` to the attention."""

# Arguments of other attention functions that change the result and that this one doesn't honour.
_REFUSED = ("s_aux", "position_bias", "head_mask")


class PagedKV:
    """KV of all layers, in place of a transformers cache.

    One pool per layer of `num_blocks · block_size` slots, each the keys and values of one
    position; slot s belongs to block `s // block_size`. All of it is allocated and touched here.
    `shapes` holds, per layer, key heads, key size and value size.
    """

    is_compileable = False

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        self.dtype = dtype
        self.is_sliding = [False] * len(shapes)
        self._shapes = list(shapes)
        self._plan: PassPlan | None = None
        self._pools = [
            torch.empty(
                num_blocks * block_size, heads * (key + value), device=device, dtype=dtype
            ).zero_()
            for heads, key, value in shapes
        ]

    @property
    def plan(self) -> PassPlan:
        """The pass under way. Raises `RuntimeError` outside one."""
        if self._plan is None:
            raise RuntimeError("no pass has begun")
        return self._plan

    def begin(self, spans: Sequence[Span]) -> PassPlan:
        """Plan the next pass: `spans` are fed in this order."""
        self._plan = PassPlan(
            spans, block_size=self.block_size, device=self.device, dtype=self.dtype
        )
        return self._plan

    @property
    def size_bytes(self) -> int:
        """Memory held, bytes."""
        return sum(pool.nbytes for pool in self._pools)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values, `[1, Hkv, ΣT, D]`; the attention reads from the pool."""
        del args, kwargs
        slots = self.plan.slots
        pool = self._pools[layer_idx]
        heads, key, _ = self._shapes[layer_idx]
        new_keys = key_states[0].transpose(0, 1).flatten(1)  # [ΣT, Hkv · D]
        new_values = value_states[0].transpose(0, 1).flatten(1)
        if isinstance(slots, slice):
            pool[slots, : heads * key] = new_keys
            pool[slots, heads * key :] = new_values
        else:
            pool.index_copy_(0, slots, torch.cat([new_keys, new_values], dim=1))
        return key_states, value_states

    def gather(self, layer_idx: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a group, `[B, Hkv, L, D]` each."""
        pool = self._pools[layer_idx]
        heads, key, value = self._shapes[layer_idx]
        rows = (
            pool[group.slots]
            if isinstance(group.slots, slice)
            else pool.index_select(0, group.slots)
        )
        keys, values = rows[:, : heads * key], rows[:, heads * key :]
        shape = (group.batch, group.context, heads)
        return keys.view(*shape, key).transpose(1, 2), values.view(*shape, value).transpose(1, 2)

    def close(self) -> None:
        """Free the pools."""
        self._pools.clear()

    # What models ask a cache for: lengths serve only masks, which the plan makes itself.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are given, never counted."""
        del layer_idx
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of a mask that is never built."""
        del layer_idx
        return query_length, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Offset of a mask that is never built."""
        del layer_idx
        return 0


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the packed tokens over the pool, as transformers calls it.

    `query` is `[1, Hq, ΣT, D]`; `key` and `value` are the new ones only, already written.
    Returns `[1, ΣT, Hq, D]`. Raises `ValueError` for an argument it would have to ignore.
    """
    del value, attention_mask
    refused = [name for name in _REFUSED if kwargs.get(name) is not None]
    if refused:
        raise ValueError(f"packed attention does not support {', '.join(refused)}")
    kv: PagedKV = kwargs[KV]
    layer_idx: int = module.layer_idx  # type: ignore[assignment]
    repeats = query.shape[1] // key.shape[1]
    layout = kv.plan.layout(sliding_window, repeats)
    packed = query[0].transpose(0, 1)  # [ΣT, Hq, D]
    outputs = [
        _attend(packed, *kv.gather(layer_idx, group), group, scaling, softcap)
        for group in layout.groups
    ]
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if layout.put is not None:
        out = out.index_select(0, layout.put)
    return out[None], None


def _attend(
    packed: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: Group,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of one group; `[B·T, Hq, D]`, padding included."""
    batch, tokens = group.batch, group.tokens
    heads = keys.shape[1]
    chosen = packed if group.take is None else packed.index_select(0, group.take)
    # Query head h·rep + r reads key head h.
    query = chosen.reshape(batch, tokens, heads, -1, chosen.shape[-1]).permute(0, 2, 3, 1, 4)
    repeats = query.shape[2]
    if tokens <= FOLD_LIMIT:
        query = query.reshape(batch, heads, repeats * tokens, -1)
    else:
        query = query.reshape(batch, heads * repeats, tokens, -1)
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
    if softcap is None:
        out = scaled_dot_product_attention(query, keys, values, group.mask, scale=scaling)
    else:
        out = _softcapped(query, keys, values, group.mask, scaling, softcap)
    out = out.reshape(batch, heads, repeats, tokens, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(batch * tokens, heads * repeats, -1)


def _softcapped(
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


def _no_mask(*args: object, **kwargs: object) -> None:
    """The mask transformers would build: none, the plan has it."""
    del args, kwargs


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers, for `model.set_attn_implementation`."""
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
