"""Torch chooses the tokens that the numpy reference chooses, and the noise is equal bit for bit."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from draftwire import noise
from draftwire.acceptance import match_token
from draftwire.errors import InternalError
from draftwire.types import SamplingParams

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    return pytest.importorskip("torch")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def verify(torch: ModuleType) -> ModuleType:  # noqa: ARG001
    from cloud_verifier import verify

    return verify


def random_params(rng: np.random.Generator) -> SamplingParams:
    """Every kind of row, greedy and truncated ones among them."""
    return SamplingParams(
        temperature=float(rng.choice([0, 1e-40, 1e-3, 0.3, 0.8, 1, 2, 100])),
        top_k=int(rng.choice([0, 0, 0, 1, 5, 50, 400])),
        top_p=float(rng.choice([1, 1, 1, 0.1, 0.5, 0.9, 0.99])),
        min_p=float(rng.choice([0, 0, 0, 0.05, 1])),
        seed=int(rng.integers(2**64, dtype=np.uint64)),
    )


def assert_equal_to_reference(
    verify: ModuleType, logits: Any, positions: list[int], sampling: list[SamplingParams]
) -> None:
    rows = logits.float().numpy()
    expected = [match_token(*row) for row in zip(rows, positions, sampling, strict=True)]
    assert verify.choose(logits, positions, sampling) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_noise_is_equal_bit_for_bit(verify: ModuleType, seed: int) -> None:
    positions = [0, 1, 2, 131071, 2**31]
    ours = verify.gumbel(seed, positions, 49152).numpy()
    assert ours.dtype == np.float32
    assert np.array_equal(ours, noise.gumbel(seed, positions, 49152))


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0, 10.0, 200.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_tokens_equal_the_reference(
    torch: ModuleType, verify: ModuleType, scale: float, dtype: str
) -> None:
    # Half precision ties all the time: the rules for ties are part of what is compared.
    rng = np.random.default_rng(int(scale * 10) + len(dtype))
    for vocab, rows in ((1, 3), (7, 40), (1001, 70), (5000, 9)):
        logits = torch.from_numpy(rng.normal(scale=scale, size=(rows, vocab)))
        positions = rng.integers(0, 2**20, rows).tolist()
        sampling = [random_params(rng) for _ in range(rows)]
        assert_equal_to_reference(verify, logits.to(getattr(torch, dtype)), positions, sampling)


@pytest.mark.parametrize("name", ["plain", "top_p", "min_p", "top_k"])
def test_tokens_equal_the_reference_on_a_large_vocabulary(
    torch: ModuleType, verify: ModuleType, name: str
) -> None:
    rng = np.random.default_rng(11)
    extra = {
        "plain": {},
        "top_p": {"top_p": 0.95},
        "min_p": {"min_p": 0.02},
        "top_k": {"top_k": 50},
    }
    logits = torch.from_numpy(rng.normal(scale=2.5, size=(40, 49152)).astype(np.float32))
    sampling = [SamplingParams(temperature=0.8, seed=s, **extra[name]) for s in range(40)]
    assert_equal_to_reference(verify, logits, list(range(40)), sampling)


@pytest.mark.parametrize("top", [0.0, 4.0, 9.0, 10.8, 12.0])
def test_winners_far_from_the_top_are_found(
    torch: ModuleType, verify: ModuleType, top: float
) -> None:
    # One likely token against a flat crowd that wins often, by noise of its far tail only.
    logits = torch.zeros(40, 49152)
    logits[:, 777] = top
    sampling = [SamplingParams(temperature=1.0, seed=s) for s in range(40)]
    tokens = verify.choose(logits, [5] * 40, sampling)
    assert_equal_to_reference(verify, logits, [5] * 40, sampling)
    assert len(set(tokens)) > (30 if top < 9 else 3)


def test_masked_tokens_never_win(torch: ModuleType, verify: ModuleType) -> None:
    rng = np.random.default_rng(4)
    logits = torch.from_numpy(rng.normal(size=(60, 300)).astype(np.float32))
    logits[:, rng.random(300) < 0.97] = -torch.inf
    positions = list(range(60))
    sampling = [random_params(rng) for _ in range(60)]
    assert_equal_to_reference(verify, logits, positions, sampling)
    tokens = verify.choose(logits, positions, sampling)
    assert torch.isfinite(logits[range(60), tokens]).all()


def test_top_p_stops_at_a_mass_that_is_just_reached(torch: ModuleType, verify: ModuleType) -> None:
    sampling = [SamplingParams(temperature=1.0, top_p=0.9, seed=s) for s in range(200)]
    assert set(verify.choose(torch.zeros(200, 10), [7] * 200, sampling)) == set(range(9))


def test_neighbours_do_not_change_a_row(torch: ModuleType, verify: ModuleType) -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(scale=2, size=(50, 500)).astype(np.float32))
    positions = rng.integers(0, 4000, 50).tolist()
    sampling = [random_params(rng) for _ in range(50)]
    together = verify.choose(logits, positions, sampling)
    alone = [
        verify.choose(logits[i : i + 1], positions[i : i + 1], sampling[i : i + 1])[0]
        for i in range(50)
    ]
    assert together == alone
    assert verify.choose(logits.flip(0), positions[::-1], sampling[::-1]) == alone[::-1]


def test_logits_of_any_layout_are_read_and_left_alone(
    torch: ModuleType, verify: ModuleType
) -> None:
    # The output head may come transposed, as torch.mm(W, x.t()).t() gives it.
    rng = np.random.default_rng(6)
    logits = torch.from_numpy(rng.normal(size=(900, 12)).astype(np.float32)).t()
    before = logits.clone()
    sampling = [random_params(rng) for _ in range(12)]
    assert_equal_to_reference(verify, logits, list(range(12)), sampling)
    assert torch.equal(logits, before)


def test_greedy_takes_the_lowest_id_of_equals(torch: ModuleType, verify: ModuleType) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 5.0, 5.0]])
    assert verify.choose(logits, [1, 2], [SamplingParams(), SamplingParams(seed=9)]) == [1, 0]


def test_no_rows_give_no_tokens(torch: ModuleType, verify: ModuleType) -> None:
    assert verify.choose(torch.zeros(0, 5), [], []) == []


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_an_error(
    torch: ModuleType, verify: ModuleType, temperature: float, bad: float
) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = bad
    with pytest.raises(InternalError, match="finite"):
        verify.choose(logits, [1, 2], [SamplingParams(temperature=temperature)] * 2)


def test_counts_must_agree(torch: ModuleType, verify: ModuleType) -> None:
    with pytest.raises(InternalError, match="2 rows"):
        verify.choose(torch.zeros(2, 8), [1], [SamplingParams()])
