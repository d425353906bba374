"""Padded passes and passes from fixed buffers compute what plain ones compute.

Capturing needs a GPU (tests/gpu). Here an operation on fixed buffers is repeated by running it
again, so that everything but the recording is the real thing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny_models  # noqa: E402
import varlen_reference  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

from cloud_verifier.attention import IMPLEMENTATION, PagedKV, Planner, Span, register  # noqa: E402
from cloud_verifier.attention.backends import backend  # noqa: E402
from cloud_verifier.attention.sdpa import SdpaPlan  # noqa: E402
from cloud_verifier.attention.varlen import VarlenPlan  # noqa: E402
from cloud_verifier.buckets import (  # noqa: E402
    LONGEST_SPAN,
    MOST_TOKENS,
    Bucket,
    buckets,
    fill_up,
)
from cloud_verifier.cuda_graphs import GraphedForward, Run, wanted  # noqa: E402
from cloud_verifier.forward import Forward  # noqa: E402
from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.loading import load_target  # noqa: E402
from cloud_verifier.rollback import probe  # noqa: E402
from draftwire.errors import InvalidRequest  # noqa: E402

pytestmark = pytest.mark.models

TOLERANCE = 1e-4
BLOCKS, BLOCK_SIZE, REACH = 12, 256, 600


def again(run: Run) -> Run:
    """A `Capture` for any device."""
    run()
    return run


@dataclass
class World:
    """A model whose passes run plainly, over a pool with a scratch block."""

    forward: Forward
    kv: PagedKV
    draw: random.Random

    def spans(self, *sizes: tuple[int, int]) -> list[Span]:
        """Sessions that feed so many tokens after so many, in scattered blocks, context filled."""
        free = list(range(BLOCKS))
        self.draw.shuffle(free)
        made = []
        for start, length in sizes:
            blocks = tuple(free.pop() for _ in range(-(-(start + length) // BLOCK_SIZE)))
            made.append(Span(start, length, blocks))
            if start:
                self.forward(self.tokens(start), [Span(0, start, blocks)], [])
        return made

    def tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(tiny_models.VOCABULARY) for _ in range(count)]

    def soil_scratch(self, value: float) -> None:
        assert self.kv.scratch_block is not None
        for layer in self.kv.layers:
            for pool in (layer.keys, layer.values):
                pool[:, self.kv.scratch_block * BLOCK_SIZE :] = value

    def pools(self) -> list[torch.Tensor]:
        """What sessions have, the scratch block left out."""
        own = slice(BLOCKS * BLOCK_SIZE)
        return [
            pool[:, own].clone() for layer in self.kv.layers for pool in (layer.keys, layer.values)
        ]


def make(model: str, directory: Path, planner: Planner) -> World:
    tiny_models.save(tiny_models.SERVED[model](), directory)
    loaded = load_target(str(directory)).model
    shapes, _ = probe(loaded, model)
    register()
    loaded.set_attn_implementation(IMPLEMENTATION)
    kv = PagedKV(
        shapes,
        num_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        device=loaded.device,
        dtype=loaded.dtype,
        planner=planner,
        scratch=True,
    )
    return World(Forward(loaded, kv), kv, random.Random(0))


@pytest.fixture(params=["llama", "gemma3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with varlen_reference.installed(), torch.inference_mode():
        yield make(request.param, tmp_path, VarlenPlan.of)


@pytest.fixture
def graphed(world: World) -> GraphedForward:
    sample = torch.empty(1, tiny_models.VOCABULARY)
    return GraphedForward(world.forward, world.kv, again, logits=sample, reach=REACH)


# ------------------------------------------------------------------ padding


@pytest.mark.parametrize("planner", [SdpaPlan, VarlenPlan.of], ids=["sdpa", "varlen"])
@pytest.mark.parametrize(
    ("sizes", "bucket"),
    [
        ([(20, 5), (0, 30), (299, 1)], Bucket(48, LONGEST_SPAN)),
        ([(20, 5), (0, 30), (299, 1)], Bucket(MOST_TOKENS, LONGEST_SPAN)),
        ([(7, 1), (300, 1), (0, 1)], Bucket(8, 1)),
        ([(7, 1)], Bucket(1, 1)),
    ],
)
def test_a_padded_pass_equals_the_pass_itself(
    tmp_path: Path, planner: Planner, sizes: list[tuple[int, int]], bucket: Bucket
) -> None:
    with varlen_reference.installed(), torch.inference_mode():
        world = make("gemma3", tmp_path, planner)
        spans = world.spans(*sizes)
        tokens = world.tokens(sum(length for _, length in sizes))
        keep = sorted({0, len(tokens) - 1})
        want = world.forward(tokens, spans, keep)
        pools = world.pools()
        world.soil_scratch(float("nan"))
        padded = fill_up(tokens, spans, keep, bucket, scratch_block=BLOCKS, block_size=BLOCK_SIZE)
        got = world.forward(padded.tokens, padded.spans, padded.keep)
    assert len(padded.tokens) == sum(span.length for span in padded.spans) == bucket.tokens
    assert max(span.length for span in padded.spans) <= bucket.longest
    assert got.shape == (bucket.tokens, tiny_models.VOCABULARY)
    assert float((got[: len(want)] - want).abs().max()) <= TOLERANCE
    for before, after in zip(pools, world.pools(), strict=True):
        assert float((before - after).abs().max()) <= TOLERANCE


def test_padding_lies_in_the_scratch_block_and_within_a_block() -> None:
    padded = fill_up([5], [Span(3, 1, (0,))], [0], Bucket(64, 64), scratch_block=9, block_size=16)
    lengths = [span.length for span in padded.spans]
    assert lengths == [1, 16, 16, 16, 15]
    assert {span.blocks for span in padded.spans[1:]} == {(9,)}
    assert {span.start for span in padded.spans[1:]} == {0}


def test_buckets_hold_whatever_decodes_and_waste_at_most_half() -> None:
    for tokens in range(1, MOST_TOKENS + 1):
        for longest in (1, LONGEST_SPAN):
            bucket = next(b for b in buckets() if b.holds(tokens, min(longest, tokens)))
            assert tokens <= bucket.tokens < max(2 * tokens, 3)
            lone = longest == 1 or tokens == 1
            assert (bucket.longest == 1) == (lone and tokens <= LONGEST_SPAN)


# ------------------------------------------------------------------ fixed buffers


def test_passes_from_fixed_buffers_equal_passes_as_they_come(
    world: World, graphed: GraphedForward
) -> None:
    for sizes in (
        [(20, 5), (0, 30), (299, 1), (64, 9)],
        [(500, 64), (10, 3)],
        [(7, 1), (300, 1), (0, 1)],
        [(5, 1)],
        [(255, 2)],
    ):
        spans = world.spans(*sizes)
        tokens = world.tokens(sum(length for _, length in sizes))
        keep = list(range(len(tokens)))
        want = world.forward(tokens, spans, keep)
        pools = world.pools()
        world.soil_scratch(1e4)
        got = graphed(tokens, spans, keep)
        assert got.shape == want.shape
        assert float((got - want).abs().max()) <= TOLERANCE
        for before, after in zip(pools, world.pools(), strict=True):
            assert float((before - after).abs().max()) <= TOLERANCE


@pytest.mark.parametrize(
    "sizes", [[(0, LONGEST_SPAN + 1)], [(0, 60)] * 6, [(REACH - 1, 2)], [(3, 1)] * 2 + [(0, 400)]]
)
def test_passes_that_fit_no_bucket_run_as_they_are(
    world: World, graphed: GraphedForward, sizes: list[tuple[int, int]]
) -> None:
    spans = world.spans(*sizes)
    tokens = world.tokens(sum(length for _, length in sizes))
    keep = [0, len(tokens) - 1]
    want = world.forward(tokens, spans, keep)
    logits = graphed._logits.clone()
    assert torch.equal(graphed(tokens, spans, keep), want)
    assert torch.equal(graphed._logits, logits)


def test_a_session_with_more_blocks_than_its_context_needs_fits(
    world: World, graphed: GraphedForward
) -> None:
    span = Span(0, 3, tuple(range(BLOCKS)))
    tokens = world.tokens(3)
    want = world.forward(tokens, [span], [2])
    assert float((graphed(tokens, [span], [2]) - want).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_what_is_recorded_waits_for_no_value(model: str, tmp_path: Path) -> None:
    """Tensors without values suffice, and the real operator takes the arguments."""
    world = make(model, tmp_path, VarlenPlan.of)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        places = torch.empty(4, 8, dtype=torch.int64)
        plan = VarlenPlan(
            positions=places[1:2],
            slots=places[2],
            lengths=torch.empty(3, 9, dtype=torch.int32),
            blocks=torch.empty(8, 3, dtype=torch.int32),
            longest=LONGEST_SPAN,
            reach=REACH,
            block_size=BLOCK_SIZE,
        )
        world.kv.adopt(plan)
        logits = world.forward.run(plan, places[:1], places[3])
    assert isinstance(logits, FakeTensor)
    assert logits.shape == (8, tiny_models.VOCABULARY)


# ------------------------------------------------------------------ who gets graphs


def test_graphs_are_for_cuda_and_varlen_and_refused_elsewhere() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert wanted(None, backend("varlen"), cuda)
    assert not wanted(False, backend("varlen"), cuda)
    assert not wanted(None, backend("sdpa"), cuda)
    assert not wanted(None, backend("varlen"), cpu)
    for name, device in (("sdpa", cuda), ("varlen", cpu)):
        with pytest.raises(InvalidRequest, match="need a CUDA device and varlen"):
            wanted(True, backend(name), device)


def test_graphs_that_cannot_be_had_are_refused_before_weights_are_loaded(tmp_path: Path) -> None:
    tiny_models.save(tiny_models.llama(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InvalidRequest, match="CUDA graphs"):
        HFTarget.load(str(tmp_path), kv_tokens=64, device="cpu", cuda_graphs=True)
