"""The deterministic mode: a token's logits depend on its history alone, to the last bit.

Each test compares with the same history fed one token a pass, alone. That the comparison can fail
is shown on the ordinary mode.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tiny_models  # noqa: E402

from cloud_verifier import deterministic  # noqa: E402
from cloud_verifier.cli import build_parser  # noqa: E402
from cloud_verifier.deterministic import ROWS, FixedForward  # noqa: E402
from cloud_verifier.engine import Arrival, Engine, EngineConfig  # noqa: E402
from cloud_verifier.forward import Forward  # noqa: E402
from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.loading import load_target  # noqa: E402
from cloud_verifier.serve import _load as load  # noqa: E402
from cloud_verifier.sessions import Stream  # noqa: E402
from cloud_verifier.target import Row  # noqa: E402
from draftwire.errors import DraftwireError, InvalidRequest, ModelLoadFailed  # noqa: E402
from draftwire.testing.demo import demo_model_path  # noqa: E402
from draftwire.types import (  # noqa: E402
    Draft,
    History,
    Open,
    SamplingParams,
    StopRules,
    Tokens,
    Verdict,
)

pytestmark = pytest.mark.models


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Leave torch's threads as they were."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module",
    params=[
        ("gemma2", "float32"),
        ("gemma2", "bfloat16"),
        ("gemma3", "float32"),
        ("llama", "float32"),
        ("llama", "bfloat16"),
        ("phi", "float32"),
        ("phi3", "float32"),
        ("qwen3", "float32"),
    ],
    ids="-".join,
)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HFTarget]:
    family, dtype = request.param
    directory = tmp_path_factory.mktemp(family)
    tiny_models.save(tiny_models.SERVED[family](), directory)
    target = HFTarget.load(
        str(directory), kv_tokens=1024, dtype=dtype, threads=1, deterministic=True
    )
    yield target
    target.close()


@pytest.fixture(scope="module")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.llama(), tmp_path_factory.mktemp("llama"))


# ------------------------------------------------------------------ random schedules


@dataclass
class Session:
    """A history, the logits of its positions when each is fed alone, and how far its KV goes."""

    tokens: list[int]
    blocks: list[int]
    alone: torch.Tensor
    length: int = 0


def random_tokens(target: HFTarget, count: int, draw: random.Random) -> list[int]:
    return [draw.randrange(target.card.vocabulary_size) for _ in range(count)]


def alone(target: HFTarget, tokens: list[int]) -> torch.Tensor:
    """Logits of each position, `[tokens, vocab]`, fed one a pass into the first blocks."""
    blocks = range(-(-len(tokens) // target.block_size))
    rows = (Row(tokens=[token], start=i, blocks=blocks) for i, token in enumerate(tokens))
    return torch.cat([target.logits([row]) for row in rows])


def differences(target: HFTarget, lengths: list[int], draw: random.Random) -> int:
    """Positions whose logits differ in any bit between a random schedule and `alone`.

    The schedule feeds sessions of these lengths in chunks of any size, in any company and order,
    into scattered blocks; part of the time with wrong drafts that are fed over again, and with
    sessions that lose their KV, to compute it again elsewhere, beside others' leading blocks.
    """
    free = list(range(target.num_blocks))
    draw.shuffle(free)

    def take(count: int) -> list[int]:
        return [free.pop() for _ in range(count)]

    sessions = []
    for length in lengths:
        tokens = random_tokens(target, length, draw)
        blocks = take(-(-length // target.block_size))
        sessions.append(Session(tokens, blocks, alone(target, tokens)))
    differing = 0
    while waiting := [s for s in sessions if s.length < len(s.tokens)]:
        company = draw.sample(waiting, draw.randint(1, len(waiting)))
        rows, expected = [], []
        for s in company:
            if s.length >= target.block_size and draw.random() < 0.1:  # preempted
                kept = draw.randint(0, s.length // target.block_size)
                lost = s.blocks[kept:]
                s.blocks[kept:] = take(len(lost)) if len(free) >= len(lost) else lost[::-1]
                free[:0] = lost if s.blocks[kept:] != lost[::-1] else []
                s.length = kept * target.block_size
            end = min(len(s.tokens), s.length + draw.choice([1, 1, 2, 5, 9, 30]))
            fed = s.tokens[s.length : end]
            right = len(fed)
            if right > 1 and draw.random() < 0.3:  # drafts that will be rejected
                right = draw.randint(1, right - 1)
                fed[right:] = random_tokens(target, len(fed) - right, draw)
            judge = draw.random() < 0.8
            drafts = len(fed) - 1 if judge else 0
            rows.append(
                Row(tokens=fed, start=s.length, blocks=s.blocks, drafts=drafts, judge=judge)
            )
            if judge:
                expected.append((s.alone[s.length : s.length + right], len(fed)))
            s.length += right
        got = target.logits(rows)
        at = 0
        for want, count in expected:
            differing += int((got[at : at + len(want)] != want).any(dim=1).sum())
            at += count
    return differing


@pytest.mark.parametrize("seed", range(2))
def test_a_token_s_logits_are_the_same_in_every_schedule(target: HFTarget, seed: int) -> None:
    draw = random.Random(seed)
    lengths = [1, target.block_size, 3 * target.block_size + 1, *draw.sample(range(2, 60), 3)]
    assert differences(target, lengths, draw) == 0


def test_without_the_mode_schedules_show_in_the_bits(llama_directory: Path) -> None:
    target = HFTarget.load(str(llama_directory), kv_tokens=1024, threads=1)
    assert differences(target, [33, 70, 50], random.Random(0)) > 0
    target.close()


def test_a_row_s_place_in_a_forward_does_not_matter(target: HFTarget) -> None:
    draw = random.Random(5)
    rows, expected = [], []
    for i, length in enumerate([1, 2, 7, 8, 9, 12, 15, 16, 17, 18, 24, 31, 32, 33, 40, 48]):
        tokens = random_tokens(target, length, draw)
        expected.append(alone(target, tokens)[-1])
        blocks = range(3 + 3 * i, 6 + 3 * i)
        if length > 1:
            target.logits([Row(tokens=tokens[:-1], start=0, blocks=blocks, judge=False)])
        rows.append(Row(tokens=tokens[-1:], start=length - 1, blocks=blocks))
    assert len(rows) == ROWS
    places = list(range(ROWS))
    for _ in range(10):
        got = target.logits([rows[place] for place in places])
        assert torch.equal(got, torch.stack([expected[place] for place in places]))
        draw.shuffle(places)


def test_odd_sizes_do_not_make_places_matter(tmp_path: Path) -> None:
    # The odd elements at the end of a tensor are computed by another formula: without care for
    # activation functions they would be those of the last row.
    config = tiny_models.llama()
    config.intermediate_size = 61
    directory = tiny_models.save(config, tmp_path)
    target = HFTarget.load(str(directory), kv_tokens=1024, threads=1, deterministic=True)
    assert differences(target, [33, 70, 50], random.Random(0)) == 0
    target.close()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_demo_model_computes_a_token_the_same_in_every_schedule(threads: int) -> None:
    draw = random.Random(threads)
    lengths = [1, 18, 33, 40] if threads == 1 else [1, 18]
    make = partial(HFTarget.load, str(demo_model_path()), kv_tokens=1024, threads=threads)
    target = make(deterministic=True)
    assert differences(target, lengths, draw) == 0
    target.close()
    ordinary = make()
    assert differences(ordinary, lengths[:2], draw) > 0
    ordinary.close()


# ------------------------------------------------------------------ through the engine


class Device:
    """Drafts for a text that it knows, with a wrong token now and then; `most` 0: never drafts."""

    def __init__(self, target: HFTarget, number: int, prompt: Tokens, most: int) -> None:
        self.stream, self.prompt, self.most = Stream(), prompt, most
        self.draw = random.Random(number)
        self.vocabulary = target.card.vocabulary_size
        self.fingerprint = target.card.target.vocabulary_fingerprint
        self.number, self.epoch = number, 0
        self.text: list[int] = []
        self.drafted: list[int] = []

    def open(self, sampling: SamplingParams) -> Open:
        return Open(
            session_id=self.number.to_bytes(16),
            attempt=1,
            generation=1,
            start=len(self.prompt),
            history=History(tokens=tuple(self.prompt)),
            vocabulary_fingerprint=self.fingerprint,
            sampling=sampling,
            stop=StopRules(max_tokens=24, ignore_eos=True),
        )

    def draft(self, known: Tokens) -> Draft:
        self.drafted = list(known[len(self.text) :][: self.draw.randint(0, self.most)])
        if self.drafted and self.draw.random() < 0.3:
            self.drafted[-1] = (self.drafted[-1] + 1) % self.vocabulary
        self.epoch += 1
        base = len(self.prompt) + len(self.text)
        return Draft(base=base, epoch=self.epoch, tokens=tuple(self.drafted), credit=1)


def texts(
    target: HFTarget,
    prompts: Sequence[Tokens],
    known: Sequence[Tokens],
    sampling: SamplingParams,
    *,
    most: int,
) -> tuple[list[Tokens], int]:
    """What the engine commits for each prompt, and how many sessions shared the largest pass."""
    engine = Engine(target, EngineConfig(max_batch_tokens=24))
    devices = {
        device.stream: (device, text)
        for device, text in (
            (Device(target, number, prompt, most), known[number])
            for number, prompt in enumerate(prompts)
        )
    }
    arrivals = [
        Arrival(device.stream, frame, 0.0)
        for device, text in devices.values()
        for frame in (device.open(sampling), device.draft(text))
    ]
    shared = 0
    while arrivals or engine.has_work:
        departures, arrivals = engine.step(arrivals), []
        verdicts = 0
        for stream, frame in departures:
            assert not isinstance(frame, DraftwireError), frame
            if isinstance(frame, Verdict):
                device, text = devices[stream]
                device.text += [*device.drafted[: frame.accepted], *frame.next]
                arrivals.append(Arrival(stream, device.draft(text), 0.0))
                verdicts += 1
        shared = max(shared, verdicts)
    return [tuple(device.text) for device, _ in devices.values()], shared


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(), SamplingParams(temperature=1.5, seed=7)],
    ids=["greedy", "seeded"],
)
def test_cloud_alone_and_drafts_in_company_give_one_text(
    target: HFTarget, sampling: SamplingParams
) -> None:
    draw = random.Random(1)
    prompts: list[Tokens] = [tuple(random_tokens(target, n, draw)) for n in (3, 40, 1, 25)]
    single: list[Tokens] = []
    for prompt in prompts:
        (text,), shared = texts(target, [prompt], [()], sampling, most=0)
        assert (len(text), shared) == (24, 1)
        single.append(text)
    together, shared = texts(target, prompts, single, sampling, most=6)
    assert together == single
    assert shared > 1


# ------------------------------------------------------------------ what is refused, and identity


def test_the_mode_belongs_to_the_identity(llama_directory: Path) -> None:
    ordinary = load_target(str(llama_directory)).identity
    fixed = load_target(str(llama_directory), deterministic=True).identity
    assert fixed.digest != ordinary.digest
    assert replace(fixed, digest=ordinary.digest) == ordinary


def test_serve_asks_for_the_mode_by_an_option(llama_directory: Path) -> None:
    served = []
    for options in ([], ["--deterministic"]):
        command = ["serve", "--model", str(llama_directory), "--kv-tokens", "64", *options]
        target = load(build_parser().parse_args(command))
        served.append(target.card.target)
        target.close()
    expected = [load_target(str(llama_directory), deterministic=mode) for mode in (False, True)]
    assert served == [loaded.identity for loaded in expected]


def test_other_devices_than_a_cpu_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(InvalidRequest, match="deterministic mode runs on CPUs only, not on meta"):
        load_target("no/such-model", device="meta", deterministic=True)


@pytest.mark.parametrize("choice", [{"attention": "sdpa"}, {"cuda_graphs": True}])
def test_choices_that_the_mode_does_not_leave_are_refused(
    llama_directory: Path, choice: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match="attention of its own"):
        HFTarget.load(str(llama_directory), kv_tokens=64, deterministic=True, **choice)


def test_experts_are_refused(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.mixtral(), tmp_path)
    with pytest.raises(ModelLoadFailed, match="experts"):
        HFTarget.load(str(directory), kv_tokens=64, deterministic=True)


class Uneven(torch.nn.SiLU):
    """Rounds in another way in the last row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        out[:, -1] *= 1 + 2**-20
        return out


def test_a_model_in_which_places_matter_is_refused(llama_directory: Path) -> None:
    target = HFTarget.load(str(llama_directory), kv_tokens=64, threads=1, deterministic=True)
    with target.plain() as model:
        pass
    forward = FixedForward(Forward(model, target._kv), model, target._kv)
    deterministic.check(forward, model, "tiny")
    model.model.layers[1].mlp.act_fn = Uneven()
    with pytest.raises(ModelLoadFailed, match="tiny is not deterministic on 1 threads"):
        deterministic.check(forward, model, "tiny")
