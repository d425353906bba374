"""Packed ragged attention: many sessions' tokens in one `[1, ΣT]` pass over a paged KV pool.

transformers models run as they are: they get `PagedKV` where they expect a cache, and a function
registered as `IMPLEMENTATION` for their attention, which finds the same `PagedKV` in an extra
keyword argument of `model(...)`. A back end is a kind of `PassPlan`, made once per pass and shared
by all layers: `sdpa` runs everywhere, `varlen` and `flex` on CUDA. `choose_backend` picks one.
"""

from cloud_verifier.attention.backends import NAMES, Backend, Need, choose_backend, refusal
from cloud_verifier.attention.fixed import FixedPlan
from cloud_verifier.attention.function import IMPLEMENTATION, KV, register
from cloud_verifier.attention.paged_kv import LayerKV, PagedKV, PassPlan, Planner
from cloud_verifier.attention.spans import Span

__all__ = [
    "IMPLEMENTATION",
    "KV",
    "NAMES",
    "Backend",
    "FixedPlan",
    "LayerKV",
    "Need",
    "PagedKV",
    "PassPlan",
    "Planner",
    "Span",
    "choose_backend",
    "refusal",
    "register",
]
