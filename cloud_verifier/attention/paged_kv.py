"""KV of all layers in equal blocks, in place of a transformers cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from cloud_verifier.attention.spans import Span


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The pools of one layer, head by head: `[heads, slots, size]` each.

    A block is a run of slots, so that reading it copies one piece of memory per head, and attention
    finds each head's keys together.
    """

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def heads(self) -> int:
        """Key heads."""
        return self.keys.shape[0]

    def write(self, slots: slice | torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put keys and values, `[1, heads, ΣT, size]` each, into `slots`."""
        for pool, new in ((self.keys, keys[0]), (self.values, values[0])):
            if isinstance(slots, slice):
                pool[:, slots] = new
            else:
                pool.index_copy_(1, slots, new)

    def clear(self, slots: torch.Tensor) -> None:
        """Put zeros into `slots`."""
        for pool in (self.keys, self.values):
            pool.index_fill_(1, slots, 0)

    def gather(
        self, blocks: slice | torch.Tensor, batch: int, block_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `batch · n` blocks, `[batch, heads, n · block_size, size]` each."""

        def of(pool: torch.Tensor) -> torch.Tensor:
            paged = pool.view(self.heads, -1, block_size * pool.shape[2])
            if isinstance(blocks, torch.Tensor):
                paged = paged.index_select(1, blocks)
            else:
                paged = paged[:, blocks]
            return paged.view(self.heads, batch, -1, pool.shape[2]).transpose(0, 1)

        return of(self.keys), of(self.values)

    def pages(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values in place, `[blocks, block_size, heads, size]` each, strided."""

        def of(pool: torch.Tensor) -> torch.Tensor:
            return pool.view(self.heads, -1, block_size, pool.shape[2]).permute(1, 2, 0, 3)

        return of(self.keys), of(self.values)


class PassPlan(Protocol):
    """Where one pass reads and writes: built once, shared by all layers."""

    @property
    def positions(self) -> torch.Tensor:
        """Position of every packed token, `[1, ΣT]`."""
        ...

    @property
    def slots(self) -> slice | torch.Tensor:
        """Where the KV of the packed tokens goes: a slice of the pools, or `[ΣT]`."""
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
                torch.empty(heads, slots, key, device=device, dtype=dtype).zero_(),
                torch.empty(heads, slots, value, device=device, dtype=dtype).zero_(),
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
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values, `[1, Hkv, ΣT, D]`; the attention reads from the pools."""
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
