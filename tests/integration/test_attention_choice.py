"""Which attention back end serves a model, and what is said of one that can't."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny_models  # noqa: E402
import varlen_reference  # noqa: E402

from cloud_verifier.attention import (  # noqa: E402  # noqa: E402
    NAMES,
    Need,
    PagedKV,
    Span,
    backends,
    choose_backend,
    refusal,
    varlen,
)
from cloud_verifier.attention.flex import FlexPlan  # noqa: E402
from cloud_verifier.attention.sdpa import SdpaPlan  # noqa: E402
from cloud_verifier.attention.selfcheck import disagreement  # noqa: E402
from cloud_verifier.attention.varlen import VarlenPlan  # noqa: E402
from cloud_verifier.hf_target import HFTarget  # noqa: E402
from draftwire.errors import InvalidRequest  # noqa: E402

pytestmark = pytest.mark.models

CPU = Need(
    device=torch.device("cpu"),
    dtype=torch.bfloat16,
    head_sizes=frozenset({(128, 128)}),
    softcapped=False,
)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Need:
    """As on a GPU of compute capability 9.0 where all back ends agree with each other."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(backends, "disagreement", lambda *_: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    return replace(CPU, device=torch.device("cuda"))


def test_a_cpu_gets_sdpa() -> None:
    assert choose_backend("auto", CPU).name == "sdpa"
    assert choose_backend("auto", replace(CPU, softcapped=True)).name == "sdpa"


def test_cuda_gets_varlen_and_flex_where_scores_are_capped(cuda: Need) -> None:
    assert choose_backend("auto", cuda).name == "varlen"
    assert choose_backend("auto", replace(cuda, softcapped=True)).name == "flex"
    assert choose_backend("auto", replace(cuda, dtype=torch.float32)).name == "sdpa"


def test_a_back_end_that_computes_something_else_is_not_chosen(
    cuda: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "disagreement", lambda *_: "it is off")
    assert choose_backend("auto", cuda).name == "sdpa"
    with pytest.raises(InvalidRequest, match="it is off"):
        choose_backend("varlen", cuda)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": torch.device("cpu")}, "needs a CUDA device"),
        ({"dtype": torch.float32}, "not in float32"),
        ({"softcapped": True}, "no soft-capping"),
        ({"head_sizes": frozenset({(192, 128)})}, "has 192 and 128"),
        ({"head_sizes": frozenset({(512, 512)})}, "up to 256"),
        ({"head_sizes": frozenset({(20, 20)})}, "multiple of 8"),
    ],
)
def test_varlen_says_what_it_lacks(cuda: Need, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        choose_backend("varlen", replace(cuda, **changes))
    assert "sdpa" in refused.value.remedy
    assert "varlen" not in refused.value.remedy


def test_varlen_needs_a_recent_gpu(cuda: Need, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert "compute capability 8.0, and the device has 7.5" in str(refusal("varlen", cuda))


def test_flex_needs_triton_on_cuda(cuda: Need, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "Triton" in str(refusal("flex", cuda))


def test_blocks_are_as_large_as_the_active_flash_attention_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert backends.backend("varlen").block_size == 256
    monkeypatch.setattr(varlen, "activated", lambda: "FA3")
    assert backends.backend("varlen").block_size == 16
    assert backends.backend("sdpa").block_size == backends.backend("flex").block_size == 16


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="'flash' is unknown") as refused:
        choose_backend("flash", CPU)
    assert all(name in refused.value.remedy for name in NAMES)


def test_a_back_end_that_cannot_serve_is_refused_before_weights_are_loaded(tmp_path: Path) -> None:
    tiny_models.save(tiny_models.llama(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InvalidRequest, match="needs a CUDA device"):
        HFTarget.load(str(tmp_path), kv_tokens=64, device="cpu", attention="varlen")


# ------------------------------------------------------------------ the check on a device


@pytest.mark.parametrize("softcapped", [False, True])
def test_plain_and_flex_attention_agree_with_themselves(softcapped: bool) -> None:
    for planner in (SdpaPlan, FlexPlan):
        assert (
            disagreement(planner, 16, torch.device("cpu"), torch.float32, (16, 16), softcapped)
            is None
        )


def test_varlen_agrees_in_blocks_that_it_can_read() -> None:
    with varlen_reference.installed():
        said = [
            disagreement(VarlenPlan.of, size, torch.device("cpu"), torch.float32, (16, 16), False)
            for size in (256, 16)
        ]
    assert said[0] is None
    assert "it fails on this device" in str(said[1])


class Blind(SdpaPlan):
    """Drops the mask, as a kernel might that ignores an argument."""

    def _mask(self, *args: object) -> None:
        del args


def test_a_back_end_that_ignores_the_mask_is_found_out() -> None:
    def planner(spans: Sequence[Span], kv: PagedKV) -> Blind:
        return Blind(spans, kv)

    got = disagreement(planner, 16, torch.device("cpu"), torch.float32, (16, 16), False)
    assert "computes something else" in str(got)
