"""The demo target when sessions want more KV than there is, or have a long prompt in common."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from bench import _crowd, prefill
from bench._scripts import write
from cloud_verifier.hf_target import HFTarget
from draftwire.testing.demo import demo_model_path
from edge_client.drafters.llama import LlamaModel
from edge_client.verifier_process import VerifierProcess

pytestmark = [pytest.mark.models, pytest.mark.slow]

SERVE = ("--model", str(demo_model_path()), "--threads", "1", "--kv-tokens", "2048")


def test_kv_for_four_full_sessions_serves_sixteen_each_with_its_own_text() -> None:
    target = HFTarget.load(str(demo_model_path()), kv_tokens=4096, threads=1)
    try:
        scripts = write(target, 16, prompt=48, length=112)
        crowd = _crowd.run(target, scripts, room=4, k=4)  # holds each token against the script
    finally:
        target.close()
    assert crowd.tokens == 16 * 112
    assert crowd.preemptions > 0
    assert crowd.recomputed > 0
    assert 0.5 < crowd.alpha < 1


def test_a_long_prefix_is_read_once_and_leaves_drafts_as_good_as_before() -> None:
    model = LlamaModel.load(demo_model_path())
    try:
        with VerifierProcess(SERVE) as verifier:
            shared = asyncio.run(prefill.shared(verifier.address, model, tokens=16))
    finally:
        model.close()
    assert shared.cached[0] == 0
    assert shared.cached[1] >= shared.prefix_tokens // 16 * 16
    assert shared.ratio < prefill.LARGEST_SHARE
    assert shared.same_text
    assert shared.accepted[0] == shared.accepted[2] > 0
    assert min(shared.alpha) > 0.8
