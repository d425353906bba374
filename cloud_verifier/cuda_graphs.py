"""Replays recorded passes: on a GPU, launching a pass's kernels one by one can take longer than
running them.

A graph is captured for every bucket at start. A pass is filled up to a bucket, its inputs go into
buffers of fixed place, and the graph of that bucket is launched; passes that fit none run as they
are. Contexts need no buckets: their lengths are inputs too, and the kernels read them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from cloud_verifier.attention import Backend, PagedKV, Span
from cloud_verifier.attention.varlen import VarlenPlan, VarlenTables
from cloud_verifier.buckets import Bucket, buckets, fill_up
from cloud_verifier.forward import Forward, PackedForward
from draftwire.errors import InvalidRequest, ModelLoadFailed

_log = logging.getLogger(__name__)

Run = Callable[[], None]


class Capture(Protocol):
    """Turns an operation on fixed buffers into one that repeats it."""

    def __call__(self, run: Run) -> Run:
        """Run it at least once; the result does the same on what the buffers hold then."""
        ...


def wanted(asked: bool | None, backend: Backend, device: torch.device) -> bool:
    """Whether to use graphs: where possible if `asked` is None.

    Raises `InvalidRequest` if they are asked for and can't be had.
    """
    possible = device.type == "cuda" and backend.fixed_shape
    if asked and not possible:
        raise InvalidRequest(
            f"CUDA graphs need a CUDA device and varlen attention, not {backend.name} on "
            f"{device.type}",
            remedy="leave out --cuda-graphs",
        )
    return possible if asked is None else asked


def graphed(
    forward: Forward, kv: PagedKV, *, logits: torch.Tensor, reach: int, required: bool
) -> PackedForward:
    """A `GraphedForward`, or `forward` itself where the model can't be captured.

    Raises `ModelLoadFailed` in that case if it is `required`.
    """
    try:
        return GraphedForward(forward, kv, CudaCapture(kv.device), logits=logits, reach=reach)
    except RuntimeError as error:
        if required:
            raise ModelLoadFailed(
                f"the model's passes can't be captured in CUDA graphs: {error}",
                remedy="pass --no-cuda-graphs",
            ) from error
        _log.warning("serving without CUDA graphs: %s", error)
        return forward


class CudaCapture:
    """Captures CUDA graphs that share their memory: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """See `Capture`."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            # The first run of an operation may allocate and choose kernels: not while capturing.
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                run()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                run()
        return graph.replay


class GraphedForward:
    """Has the call of `Forward`. Its logits are overwritten by the next pass."""

    def __init__(
        self,
        forward: Forward,
        kv: PagedKV,
        capture: Capture,
        *,
        logits: torch.Tensor,
        reach: int,
    ) -> None:
        """Capture all buckets. `kv` must have a scratch block.

        `logits` is a sample of the model's, `[…, vocab]`, for width and type; no context goes
        beyond `reach` tokens.
        """
        self._forward = forward
        self._buckets = buckets()
        self._reach = reach
        self._inputs = _Inputs(kv, self._buckets, reach)
        largest = max(bucket.tokens for bucket in self._buckets)
        self._logits = logits.new_empty(largest, logits.shape[-1])
        self._replay: dict[Bucket, Run] = {}
        with torch.inference_mode():
            # Largest first: smaller ones then find their memory in its.
            for bucket in sorted(self._buckets, key=lambda b: b.tokens, reverse=True):
                self._inputs.put(bucket, (), (), ())
                self._replay[bucket] = capture(self._pass_of(bucket, kv))
        _log.info("captured passes of %d sizes, up to %d tokens", len(self._replay), largest)

    def __call__(
        self, tokens: Sequence[int], spans: Sequence[Span], keep: Sequence[int]
    ) -> torch.Tensor:
        """See `Forward`."""
        bucket = self._bucket(len(tokens), spans)
        if bucket is None:
            return self._forward(tokens, spans, keep)
        self._inputs.put(bucket, tokens, spans, keep)
        self._replay[bucket]()
        return self._logits[: len(keep)]

    def _bucket(self, tokens: int, spans: Sequence[Span]) -> Bucket | None:
        longest = max(span.length for span in spans)
        if any(span.end > self._reach for span in spans):
            return None
        return next((b for b in self._buckets if b.holds(tokens, longest)), None)

    def _pass_of(self, bucket: Bucket, kv: PagedKV) -> Run:
        plan = self._inputs.plan(bucket)
        tokens, keep = self._inputs.tokens(bucket), self._inputs.keep(bucket)

        def run() -> None:
            kv.adopt(plan)
            self._logits[: bucket.tokens].copy_(self._forward.run(plan, tokens, keep))

        return run


class _Inputs:
    """The inputs of a pass in memory of fixed place, on the host and on the device."""

    def __init__(self, kv: PagedKV, sizes: Sequence[Bucket], reach: int) -> None:
        if kv.scratch_block is None:
            raise ValueError("padding needs a scratch block")
        self._scratch = kv.scratch_block
        self._block_size = kv.block_size
        self._reach = reach
        most = max(bucket.tokens for bucket in sizes)
        pinned = kv.device.type == "cuda"
        # tokens, positions, slots, keep; lengths as in `VarlenTables`; blocks
        self._host = (
            torch.zeros(4, most, dtype=torch.int64, pin_memory=pinned),
            torch.zeros(3, most + 1, dtype=torch.int32, pin_memory=pinned),
            torch.zeros(most, -(-reach // kv.block_size), dtype=torch.int32, pin_memory=pinned),
        )
        self._device = tuple(part.to(kv.device, copy=True) for part in self._host)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def put(
        self,
        bucket: Bucket,
        tokens: Sequence[int],
        spans: Sequence[Span],
        keep: Sequence[int],
    ) -> None:
        """Fill the pass up to `bucket` and send it to the device, without waiting for it."""
        padded = fill_up(
            tokens, spans, keep, bucket, scratch_block=self._scratch, block_size=self._block_size
        )
        tables = VarlenTables.of(padded.spans, self._block_size)
        used, width = len(padded.spans), min(tables.blocks.shape[1], self._host[2].shape[1])
        if self._copied is not None:
            self._copied.synchronize()  # the last pass's inputs have left the host's buffers
        places, lengths, blocks = (part.numpy() for part in self._host)
        places[:, : bucket.tokens] = padded.tokens, tables.positions, tables.slots, padded.keep
        lengths[:, : used + 1] = tables.lengths
        lengths[:2, used + 1 :] = tables.lengths[:2, -1:]  # spans of no tokens
        lengths[2, used:] = 0
        blocks[:used, :width] = tables.blocks[:, :width]
        for device, host in zip(self._device[:2], self._host[:2], strict=True):
            device.copy_(host, non_blocking=True)
        self._device[2][:used].copy_(self._host[2][:used], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device[0].device))

    def plan(self, bucket: Bucket) -> VarlenPlan:
        """The plan whose tensors are these buffers."""
        places, lengths, blocks = self._device
        return VarlenPlan(
            positions=places[1:2, : bucket.tokens],
            slots=places[2, : bucket.tokens],
            lengths=lengths[:, : bucket.tokens + 1],
            blocks=blocks[: bucket.tokens],
            longest=bucket.longest,
            reach=self._reach,
            block_size=self._block_size,
        )

    def tokens(self, bucket: Bucket) -> torch.Tensor:
        """`[1, bucket.tokens]`."""
        return self._device[0][:1, : bucket.tokens]

    def keep(self, bucket: Bucket) -> torch.Tensor:
        """`[bucket.tokens]`."""
        return self._device[0][3, : bucket.tokens]
