"""Chat templates as Hugging Face writes them, rendered without its libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeAlias

from draftwire.errors import DraftwireError, InvalidRequest, MissingDependency

Renderer: TypeAlias = Callable[[Sequence[Mapping[str, str]]], str]


def rendered(
    messages: Sequence[Mapping[str, str]], template: Callable[[], Renderer] | None, name: str
) -> str:
    """The text of a conversation, ready for the answer, by the template of the model called `name`.

    Raises `InvalidRequest` if there is none, it is broken or refuses the messages, or a message
    lacks the texts `role` and `content`.
    """
    for message in messages:
        if not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InvalidRequest("a chat message needs the texts role and content")
    if template is None:
        raise InvalidRequest(f"{name} has no chat template", remedy="send a plain prompt")
    try:
        return template()(messages)
    except DraftwireError:
        raise
    except Exception as error:  # a template may raise what it likes
        raise InvalidRequest(
            f"the chat template can't render the messages: {str(error) or type(error).__name__}"
        ) from error


def renderer(source: str, *, bos: str, eos: str) -> Renderer:
    """Renders messages as `transformers` does, ready for the answer.

    `source` is Jinja; it runs in a sandbox, for it came with a model. What it raises for the
    messages it refuses goes to the caller. Raises `MissingDependency` without Jinja2 and
    `InvalidRequest` for a template that does not parse.
    """
    try:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingDependency(
            f"chat templates take the package {error.name}",
            remedy="pip install 'draftwire[edge-onnx]'",
        ) from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise InvalidRequest(f"the chat template does not parse: {error}") from error

    def render(messages: Sequence[Mapping[str, str]]) -> str:
        return template.render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
        )

    return render


def _to_json(value: Any, **options: Any) -> str:
    """JSON in which nothing is escaped for HTML."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)
