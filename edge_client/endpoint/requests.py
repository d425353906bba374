"""What callers ask for: the bodies of OpenAI's API, read and checked.

Everything in a body is either honoured or refused by name. `user` and its like only label the
caller, for whom there is nothing to honour on a device: they alone are read and dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from draftwire.errors import DraftwireError
from draftwire.types import MAX_COUNT
from edge_client.endpoint.errors import Refused, described, invalid, unsupported
from edge_client.endpoint.fields import Fields, is_integers
from edge_client.endpoint.messages import content_text, messages_of
from edge_client.options import Options, settings

MAX_CHOICES = 128

_FINAL = {"show_drafts": False, "offline_tokens": 0}
"""Whatever the client's file says: text that was sent can't be taken back."""

_LABELS = ("user", "safety_identifier", "prompt_cache_key")

_INERT: dict[str, tuple[object, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "suffix": ("",),
}
"""Parameters that aren't served, and the values that ask for what happens anyway."""

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_INTEGERS = ("top_k", "min_tokens", "num_draft_tokens")
_FLAGS = ("ignore_eos", "prompt_lookup")
_TEXTS = ("verify_mode", "regex", "lark")


_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request. Each of `prompts` holds the prompt's argument of `AsyncEdgeClient.generate`.

    `n` outputs are wanted for each of them, of the given `options`. `model` is the name asked for,
    None for whichever is served; `logprobs` whether to tell them.
    """

    model: str | None
    prompts: tuple[Mapping[str, Any], ...]
    n: int
    stream: bool
    include_usage: bool
    logprobs: bool
    options: Options

    @property
    def grammar(self) -> str | None:
        """The parameter that set a grammar, if one did."""
        names = {"json_schema": "response_format", "regex": "regex", "lark": "lark"}
        return next((param for name, param in names.items() if name in self.options), None)

    def check_tokens(self, vocabulary_size: int) -> None:
        """Refuse token ids beyond a vocabulary, by the parameter that names them."""
        given = [token for prompt in self.prompts for token in prompt.get("prompt", ())]
        ids = {
            "prompt": [token for token in given if isinstance(token, int)],
            "stop_token_ids": [*self.options.get("stop_token_ids", [])],
            "logit_bias": [*self.options.get("logit_bias", {})],
        }
        for name, tokens in ids.items():
            if any(not 0 <= token < vocabulary_size for token in tokens):
                raise invalid(f"{name} names a token that is not in [0, {vocabulary_size})", name)


def chat_request(body: object) -> Asked:
    """A body of `/v1/chat/completions`. Raises `Refused`."""
    fields = Fields(body)
    messages = messages_of(fields.required("messages"))
    options = _sampling(fields)
    options["max_tokens"] = _longest(fields) or 0
    if schema := _schema(fields.take("response_format")):
        options["json_schema"] = schema
    if "prediction" in fields:
        options["prediction"] = _prediction(fields.take("prediction"))
    logprobs = fields.flag("logprobs") or False
    top = fields.integer("top_logprobs", least=0)
    if top is not None and not logprobs:
        raise invalid("top_logprobs needs logprobs", "top_logprobs", remedy="set logprobs")
    if logprobs:
        options |= {"logprobs": True, "top_logprobs": top or 0}
    return _asked(fields, ({"messages": messages},), logprobs, options)


def completion_request(body: object) -> Asked:
    """A body of `/v1/completions`. Raises `Refused`."""
    fields = Fields(body)
    prompts = _prompts(fields.required("prompt"))
    options = _sampling(fields)
    options["max_tokens"] = fields.integer("max_tokens", least=1) or 16
    top = fields.integer("logprobs", least=0)
    if top is not None:
        options |= {"logprobs": True, "top_logprobs": top}
    best_of = fields.integer("best_of", least=1)
    asked = _asked(fields, prompts, top is not None, options)
    if best_of not in (None, asked.n):
        raise unsupported("best_of", "best_of is only supported where it is n")
    return asked


def _asked(
    fields: Fields,
    prompts: tuple[Mapping[str, Any], ...],
    logprobs: bool,
    options: dict[str, Any],
) -> Asked:
    n = fields.integer("n", least=1) or 1
    if n * len(prompts) > MAX_CHOICES:
        raise invalid(f"more than {MAX_CHOICES} outputs were asked for", "n")
    stream = fields.flag("stream") or False
    include_usage = False
    if "stream_options" in fields:
        if not stream:
            raise invalid("stream_options needs stream", "stream_options", remedy="set stream")
        asked = Fields(fields.take("stream_options"), "stream_options")
        include_usage = asked.flag("include_usage") or False
        asked.inert("include_obfuscation", (False,))
        asked.end()
    model = fields.text("model")
    for name in _LABELS:
        fields.text(name)
    for name, values in _INERT.items():
        fields.inert(name, values)
    fields.end()
    _check(options)
    return Asked(
        model=model,
        prompts=prompts,
        n=n,
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs,
        options=cast(Options, options | _FINAL),
    )


def _check(options: Mapping[str, Any]) -> None:
    """Refuse values out of range, by name; then all of them, which may exclude each other."""
    for name, value in options.items():
        _settings(name, {name: value})
    _settings(None, options)


def _settings(param: str | None, options: Mapping[str, Any]) -> None:
    try:
        settings(**options)
    except DraftwireError as error:
        raise Refused(described(error, param)) from error


def _sampling(fields: Fields) -> dict[str, Any]:
    """Options that both kinds of request know; ours, beyond OpenAI's, among them."""
    options: dict[str, Any] = {name: fields.number(name) for name in _NUMBERS}
    options |= {name: fields.integer(name) for name in _INTEGERS}
    options |= {name: fields.flag(name) for name in _FLAGS}
    options |= {name: fields.text(name) for name in _TEXTS}
    options["stop"] = fields.texts("stop")
    options["stop_token_ids"] = fields.integers("stop_token_ids")
    options["logit_bias"] = _bias(fields.take("logit_bias"))
    if (seed := fields.integer("seed")) is not None:
        options["seed"] = seed % 2**64  # theirs is signed
    given = {name: value for name, value in options.items() if value is not None}
    return {"temperature": 1.0} | given  # OpenAI's default, not ours


def _longest(fields: Fields) -> int | None:
    new = fields.integer("max_completion_tokens", least=1)
    old = fields.integer("max_tokens", least=1)
    if new is not None and old not in (None, new):
        raise invalid("max_tokens contradicts max_completion_tokens", "max_tokens")
    if new is not None and new > MAX_COUNT:  # else refused as max_tokens, which was not given
        raise invalid(f"max_completion_tokens is {new}, above {MAX_COUNT}", "max_completion_tokens")
    return new if new is not None else old


def _bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid("logit_bias is not a JSON object", "logit_bias")
    bias = dict[int, float]()
    for token, amount in value.items():
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not _TOKEN_ID.fullmatch(token) or not number:
            raise invalid(f"logit_bias of {token!r} is no token id and number", "logit_bias")
        bias[int(token)] = amount
    return bias


def _schema(value: object) -> str | None:
    """JSON schema of a `response_format`; None for text."""
    if value is None:
        return None
    fields = Fields(value, "response_format")
    kind = fields.required("type")
    if kind == "text":
        fields.end()
        return None
    if kind == "json_object":
        fields.end()
        return json.dumps({"type": "object"})
    if kind != "json_schema":
        raise unsupported(
            "response_format.type",
            f"response_format.type {kind!r} is not supported",
            remedy="use text, json_object or json_schema",
        )
    inner = Fields(fields.required("json_schema"), "response_format.json_schema")
    fields.end()
    inner.text("name")  # names it for the caller
    inner.flag("strict")  # it is always kept to
    schema = inner.required("schema")
    inner.end()
    if not isinstance(schema, dict):
        raise invalid("the schema is not a JSON object", "response_format.json_schema.schema")
    return json.dumps(schema)


def _prediction(value: object) -> str:
    fields = Fields(value, "prediction")
    if fields.required("type") != "content":
        raise unsupported("prediction.type", remedy="use content")
    text = content_text(fields.required("content"), "prediction.content")
    fields.end()
    return text


def _prompts(value: object) -> tuple[Mapping[str, Any], ...]:
    several = value if isinstance(value, list) and not is_integers(value) else [value]
    if several and all(isinstance(one, str) or (is_integers(one) and one) for one in several):
        return tuple({"prompt": one} for one in several)
    raise invalid("prompt is no text, no list of token ids, and no list of either", "prompt")
