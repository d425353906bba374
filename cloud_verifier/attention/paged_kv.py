"""KV of all layers in equal blocks, in place of a transformers cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from cloud_verifier.attention.spans import Span


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The pool of one layer: a row per slot, `[slots, heads · (key_size + value_size)]`.

    A row holds the keys of all heads, then the values: one copy moves both.
    """

    pool: torch.Tensor
    heads: int
    key_size: int
    value_size: int

    def write(self, slots: slice | torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put keys and values, `[1, heads, ΣT, size]` each, into `slots`."""
        new_keys = keys[0].transpose(0, 1).flatten(1)  # [ΣT, heads · key_size]
        new_values = values[0].transpose(0, 1).flatten(1)
        split = self.heads * self.key_size
        if isinstance(slots, slice):
            self.pool[slots, :split] = new_keys
            self.pool[slots, split:] = new_values
        else:
            self.pool.index_copy_(0, slots, torch.cat([new_keys, new_values], dim=1))

    def gather(
        self, slots: slice | torch.Tensor, batch: int, context: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `batch · context` slots, `[batch, heads, context, size]` each."""
        rows = self.pool[slots] if isinstance(slots, slice) else self.pool.index_select(0, slots)
        keys, values = self._split(rows.view(batch, context, -1))
        return keys.transpose(1, 2), values.transpose(1, 2)

    def pages(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values in place, `[blocks, block_size, heads, size]` each, strided."""
        return self._split(self.pool.view(-1, block_size, self.pool.shape[1]))

    def _split(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        split = self.heads * self.key_size
        return (
            rows[..., :split].view(*rows.shape[:-1], self.heads, self.key_size),
            rows[..., split:].view(*rows.shape[:-1], self.heads, self.value_size),
        )


class PassPlan(Protocol):
    """Where one pass reads and writes: built once, shared by all layers."""

    @property
    def positions(self) -> torch.Tensor:
        """Position of every packed token, `[1, ΣT]`."""
        ...

    @property
    def slots(self) -> slice | torch.Tensor:
        """Where the KV of the packed tokens goes: a slice of the pool, or `[ΣT]`."""
        ...

    def attend(
        self,
        query: torch.Tensor,
        layer: LayerKV,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """Attention of the packed tokens, `[ΣT, Hq, D]`, whose KV is written; the same shape.

        A token sees its own session's positions up to its own, the last `window` of them (None:
        all). `softcap` bounds scores to `softcap · tanh(score / softcap)`.
        """
        ...


class PagedKV:
    """Pools of `num_blocks · block_size` slots; slot s belongs to block `s // block_size`.

    `shapes` holds, per layer, key heads, key size and value size. All memory is allocated and
    touched here. With `scratch` there is one more block, `scratch_block`, that no session gets:
    padding writes there. `planner` makes the plan of a pass from its spans and this object.
    `windows` collects how far back layers asked to see, None for all of it.
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
        planner: Planner,
        scratch: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        self.dtype = dtype
        self.scratch_block = num_blocks if scratch else None
        self.windows: set[int | None] = set()
        self.is_sliding = [False] * len(shapes)
        self._planner = planner
        self._plan: PassPlan | None = None
        slots = (num_blocks + scratch) * block_size
        self.layers = [
            LayerKV(
                torch.empty(slots, heads * (key + value), device=device, dtype=dtype).zero_(),
                heads,
                key,
                value,
            )
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
        return self.adopt(self._planner(spans, self))

    def adopt(self, plan: PassPlan) -> PassPlan:
        """Let `plan` be the next pass."""
        self._plan = plan
        return plan

    @property
    def size_bytes(self) -> int:
        """Memory held, bytes."""
        return sum(layer.pool.nbytes for layer in self.layers)

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
        self.layers[layer_idx].write(self.plan.slots, key_states, value_states)
        return key_states, value_states

    def close(self) -> None:
        """Free the pools."""
        self._plan = None
        self.layers.clear()

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


Planner: TypeAlias = Callable[[Sequence[Span], PagedKV], PassPlan]
