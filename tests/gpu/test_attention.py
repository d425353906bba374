"""On a CUDA device: back ends agree with plain attention, and replayed passes with run ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny_models  # noqa: E402

from cloud_verifier.attention import Need, refusal  # noqa: E402
from cloud_verifier.buckets import MOST_TOKENS  # noqa: E402
from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.target import Row  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Contexts and what is fed after them: ragged rows, lone tokens, a prompt's chunk beside others.
PASSES = [
    [(21, 1), (38, 3), (10, 5), (60, 8)],
    [(24, 1), (5, 1), (230, 1)],
    [(30, 90), (32, 1), (15, 5), (149, 1)],
    [(0, 40), (0, 3), (0, 17)],
    [(12, 1)],
]


def load(model: str, directory: Path, attention: str, *, graphs: bool = False) -> HFTarget:
    if not (directory / "config.json").exists():
        tiny_models.save(tiny_models.SERVED[model](), directory)
    return HFTarget.load(
        str(directory),
        kv_tokens=16 * 256,
        dtype="bfloat16",
        device="cuda",
        attention=attention,
        cuda_graphs=graphs,
    )


def passes(target: HFTarget) -> list[torch.Tensor]:
    """Logits of `PASSES`, each on contexts fed before; the same texts for every target."""
    draw = random.Random(0)
    results = []
    for sizes in PASSES:
        free = list(range(target.num_blocks))
        random.Random(1).shuffle(free)
        rows = []
        for context, fed in sizes:
            blocks = [free.pop() for _ in range(-(-(context + fed) // target.block_size))]
            text = [draw.randrange(tiny_models.VOCABULARY) for _ in range(context + fed)]
            if context:
                prompt = Row(tokens=text[:context], start=0, blocks=blocks, judge=False)
                target.verify([prompt])
            rows.append(Row(tokens=text[context:], start=context, blocks=blocks, drafts=fed - 1))
        results.append(target.logits(rows).float().cpu())
    return results


def assert_close(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= 0.05 * float(b.abs().max())


@pytest.mark.parametrize(
    ("model", "attention"),
    [
        ("llama", "varlen"),
        ("gemma3", "varlen"),
        ("gemma2", "flex"),
        ("gemma3", "flex"),
    ],
)
def test_back_ends_compute_what_sdpa_computes(model: str, attention: str, tmp_path: Path) -> None:
    plain = load(model, tmp_path, "sdpa")
    want = passes(plain)
    plain.close()
    other = load(model, tmp_path, attention)
    assert_close(passes(other), want)
    other.close()


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_replayed_passes_equal_passes_as_they_come(model: str, tmp_path: Path) -> None:
    eager = load(model, tmp_path, "varlen")
    want = passes(eager)
    eager.close()
    graphed = load(model, tmp_path, "varlen", graphs=True)
    assert_close(passes(graphed), want)
    assert_close(passes(graphed), want)  # whatever the buffers held before
    graphed.close()


def test_passes_beyond_the_largest_graph_run_as_they_are(tmp_path: Path) -> None:
    target = load("llama", tmp_path, "varlen", graphs=True)
    tokens = [t % tiny_models.VOCABULARY for t in range(200)]
    rows = [
        Row(tokens=tokens, start=0, blocks=[block], drafts=len(tokens) - 1) for block in range(2)
    ]
    assert sum(len(row.tokens) for row in rows) > MOST_TOKENS
    together = target.logits(rows).float()
    alone = target.logits(rows[:1]).float()
    assert_close([together[:200].cpu(), together[200:].cpu()], [alone.cpu(), alone.cpu()])
    target.close()


def test_drafts_of_the_target_s_own_choice_are_accepted(tmp_path: Path) -> None:
    target = load("llama", tmp_path, "varlen", graphs=True)
    own, feed, start = [], [1, 2, 3, 4], 0
    for _ in range(5):
        (judgement,) = target.verify([Row(tokens=feed, start=start, blocks=[3])])
        assert judgement is not None
        start += len(feed)
        own.append(judgement.token)
        feed = [judgement.token]
    row = Row(tokens=[4, *own[:4]], start=3, blocks=[3], drafts=4)
    (judgement,) = target.verify([row])
    assert judgement is not None
    assert judgement.accepted >= 3  # bfloat16 ties may fall either way
    target.close()


@pytest.mark.parametrize("size", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_varlen_serves_the_usual_head_sizes(size: int, dtype: torch.dtype) -> None:
    need = Need(
        device=torch.device("cuda"),
        dtype=dtype,
        head_sizes=frozenset({(size, size)}),
        softcapped=False,
    )
    assert refusal("varlen", need) is None
