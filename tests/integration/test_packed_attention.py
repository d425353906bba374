"""Packed ragged passes compute what separate forwards of the unmodified model compute."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tiny_models  # noqa: E402
import varlen_reference  # noqa: E402
from torch.nn.attention import flex_attention  # noqa: E402

from cloud_verifier.attention import NAMES, varlen  # noqa: E402
from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.target import Row  # noqa: E402
from draftwire.errors import InternalError  # noqa: E402

pytestmark = pytest.mark.models

TOLERANCE = 1e-4


CASES = [
    (model, attention)
    for attention in NAMES
    for model in ("gemma2", "gemma3", "llama")  # the others: test_model_families
    if (model, attention) != ("gemma2", "varlen")  # it can't bound scores
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HFTarget]:
    model, attention = request.param
    directory = tmp_path_factory.mktemp(model)
    tiny_models.save(tiny_models.SERVED[model](), directory)
    block_size = varlen.FLASH_2_BLOCK if attention == "varlen" else 16
    with varlen_reference.installed(), uncompiled_flex():
        target = HFTarget.load(
            str(directory), kv_tokens=128 * block_size, threads=1, attention=attention
        )
        assert target.block_size == block_size
        yield target
        target.close()


@contextmanager
def uncompiled_flex() -> Iterator[None]:
    """FlexAttention without tracing every shape first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield


class Session:
    """A token history with blocks of its own, and what the plain model says of it."""

    def __init__(self, target: HFTarget, tokens: list[int], blocks: list[int]) -> None:
        self.tokens, self.blocks = tokens, blocks
        with target.plain() as model, torch.inference_mode():
            self.expected = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]

    def row(self, start: int, end: int) -> Row:
        return Row(
            tokens=self.tokens[start:end],
            start=start,
            blocks=self.blocks,
            drafts=end - start - 1,
        )


def sessions(target: HFTarget, lengths: list[int], seed: int = 0) -> list[Session]:
    """Sessions of random tokens whose blocks are scattered over the pool."""
    draw = random.Random(seed)
    free = list(range(target.num_blocks))
    draw.shuffle(free)
    made = []
    for length in lengths:
        blocks = [free.pop() for _ in range(-(-length // target.block_size))]
        tokens = [draw.randrange(tiny_models.VOCABULARY) for _ in range(length)]
        made.append(Session(target, tokens, blocks))
    return made


def assert_pass_matches(target: HFTarget, pieces: list[tuple[Session, int, int]]) -> None:
    """One pass over [start, end) of each session gives the plain model's logits there."""
    got = target.logits([session.row(start, end) for session, start, end in pieces])
    want = torch.cat([session.expected[start:end] for session, start, end in pieces])
    assert got.shape == want.shape
    assert float((got - want).abs().max()) <= TOLERANCE


def test_prompts_of_different_lengths_share_a_pass(target: HFTarget) -> None:
    some = sessions(target, [3, 17, 40, 1])
    assert_pass_matches(target, [(s, 0, len(s.tokens)) for s in some])


def test_verify_rows_of_different_lengths_share_a_pass(target: HFTarget) -> None:
    some = sessions(target, [21, 38, 10, 60])
    rows = [1, 3, 5, 8]
    for s, row in zip(some, rows, strict=True):
        target.verify([replace(s.row(0, len(s.tokens) - row), judge=False, drafts=0)])
    assert_pass_matches(
        target, [(s, len(s.tokens) - n, len(s.tokens)) for s, n in zip(some, rows, strict=True)]
    )


def test_a_prompt_chunk_runs_beside_verify_rows(target: HFTarget) -> None:
    some = sessions(target, [120, 33, 20, 150])
    for s, fed in zip(some, [30, 32, 15, 149], strict=True):
        target.verify([replace(s.row(0, fed), judge=False, drafts=0)])
    chunk = (some[0], 30, 120)
    assert_pass_matches(target, [(some[1], 32, 33), chunk, (some[2], 15, 20), (some[3], 149, 150)])


def test_prompts_fed_in_chunks_equal_prompts_fed_at_once(target: HFTarget) -> None:
    (s,) = sessions(target, [75])
    for start, end in [(0, 1), (1, 30), (30, 31), (31, 75)]:
        assert_pass_matches(target, [(s, start, end)])


def test_one_token_rows_at_equal_and_unequal_lengths(target: HFTarget) -> None:
    for lengths in ([24, 24, 24], [24, 5, 40]):
        some = sessions(target, lengths)
        for s in some:
            target.verify([replace(s.row(0, len(s.tokens) - 1), judge=False, drafts=0)])
        assert_pass_matches(target, [(s, len(s.tokens) - 1, len(s.tokens)) for s in some])


def test_feeding_again_at_an_earlier_position_overwrites_rejected_tokens(target: HFTarget) -> None:
    kept, other = sessions(target, [50, 30])
    target.verify([replace(kept.row(0, 40), judge=False, drafts=0)])
    wrong = replace(kept.row(40, 48), tokens=[(t + 1) % 90 for t in kept.tokens[40:48]])
    target.verify([wrong, replace(other.row(0, 29), judge=False, drafts=0)])
    assert_pass_matches(target, [(kept, 40, 43), (other, 29, 30)])
    assert_pass_matches(target, [(kept, 43, 50)])


def test_what_other_sessions_left_in_a_block_is_never_seen(target: HFTarget) -> None:
    for layer in target._kv.layers:
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    some = sessions(target, [20, 3, 41])
    assert_pass_matches(target, [(s, 0, len(s.tokens)) for s in some])


def test_contiguous_blocks_are_read_in_place_with_the_same_result(target: HFTarget) -> None:
    (s,) = sessions(target, [45])
    s.blocks = list(range(3, 6))
    assert_pass_matches(target, [(s, 0, 40)])
    assert_pass_matches(target, [(s, 40, 45)])


def test_a_pass_judges_drafts_against_the_target_s_own_tokens(target: HFTarget) -> None:
    (s,) = sessions(target, [25])
    own: list[int] = []
    feed, start = s.tokens, 0
    for _ in range(5):
        (judgement,) = target.verify([Row(tokens=feed, start=start, blocks=s.blocks)])
        assert judgement is not None
        own.append(judgement.token)
        feed, start = [judgement.token], 25 + len(own) - 1
    wrong = (own[2] + 1) % tiny_models.VOCABULARY
    last = s.tokens[24]
    for drafts, accepted in [
        (own[:4], 4),
        ([*own[:2], wrong, own[3]], 2),
        ([own[0] - 1 if own[0] else 1], 0),
        ([], 0),
    ]:
        row = Row(tokens=[last, *drafts], start=24, blocks=s.blocks, drafts=len(drafts))
        (judgement,) = target.verify([row])
        assert judgement is not None
        assert (judgement.accepted, judgement.token) == (accepted, own[accepted])


def test_rows_that_are_not_judged_get_none_and_cost_no_logits(target: HFTarget) -> None:
    first, second = sessions(target, [12, 9])
    fill = replace(first.row(0, 12), judge=False, drafts=0)
    assert target.logits([fill]).shape[0] == 0
    assert target.verify([fill]) == [None]
    judged = target.verify([fill, second.row(0, 9)])
    assert judged[0] is None
    assert judged[1] is not None
    assert target.verify([]) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": [1, 97]}, "vocabulary"),
        ({"tokens": [-1]}, "vocabulary"),
        ({"tokens": []}, "feeds 0 tokens"),
        ({"drafts": 1}, "1 of them drafts"),
        ({"start": 256}, "past its 1 blocks"),
        ({"start": -1}, "feeds"),
        ({"blocks": [128]}, "outside the 128"),
    ],
)
def test_a_row_that_breaks_the_protocol_is_refused_before_anything_runs(
    target: HFTarget, changes: dict[str, object], reason: str
) -> None:
    good = Row(tokens=[1], start=0, blocks=[0])
    with pytest.raises(InternalError, match=reason):
        target.verify([good, replace(good, **changes)])
