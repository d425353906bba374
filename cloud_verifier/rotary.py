"""How long texts may be before their length changes what their first tokens were computed with.

Some rotary embeddings choose their frequencies by the longest text of a pass. One session's
length would then change another's keys, and a session's earlier keys would be wrong from the
switch on. Below it, all is as with fixed frequencies; so that is where contexts end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from draftwire.errors import ModelLoadFailed


def longest_context(config: PreTrainedConfig, name: str) -> tuple[int, str]:
    """Tokens that a text may have, and why not more than the model was made for ("": it may).

    `config` is the text model's. Raises `ModelLoadFailed` where it does not say.
    """
    stated = getattr(config, "max_position_embeddings", None)
    if not isinstance(stated, int):
        raise ModelLoadFailed(
            f"{name} does not say how long its texts may be",
            remedy="choose a model whose configuration has max_position_embeddings",
        )
    longest, reason = stated, ""
    for rotary in _rotaries(config):
        # "dynamic" ones switch at the length stated, which is the bound anyway.
        if rotary.get("rope_type") != "longrope":
            continue
        switch = rotary.get("original_max_position_embeddings") or stated
        if switch < longest:
            longest = switch
            reason = f"its longrope embedding computes all tokens anew beyond {switch}"
    return longest, reason


def _rotaries(config: PreTrainedConfig) -> list[Mapping[str, Any]]:
    """The rotary embeddings of a configuration, which has one or one for each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    each = [value for value in found.values() if isinstance(value, Mapping)]
    return each or [found]
