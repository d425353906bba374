"""The messages of a chat request, as the chat template takes them."""

from __future__ import annotations

from edge_client.endpoint.errors import invalid, unsupported
from edge_client.endpoint.fields import Fields

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_EMPTY: dict[str, tuple[object, ...]] = {"tool_calls": ([],), "annotations": ([],)}
"""What an answer of ours, sent back as it is, may hold beside its text."""


def messages_of(value: object) -> list[dict[str, str]]:
    """Roles and texts of `messages`. Raises `Refused`, which names what isn't served."""
    if not isinstance(value, list) or not value:
        raise invalid("messages is not a list of messages", "messages")
    return [_message(one, f"messages[{index}]") for index, one in enumerate(value)]


def _message(value: object, path: str) -> dict[str, str]:
    fields = Fields(value, path)
    role = fields.text("role")
    if role not in _ROLES:
        raise unsupported(
            f"{path}.role",
            f"role {role!r} is not supported",
            remedy=f"use {', '.join(_ROLES)}",
        )
    content = content_text(fields.required("content"), f"{path}.content")
    for name, values in _EMPTY.items():
        fields.inert(name, values)
    fields.end()
    return {"role": _ROLES[role], "content": content}


def content_text(value: object, path: str) -> str:
    """A text, or a list of parts that are texts, joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"{path} is no text and no list of parts", path)
    return "".join(_part(one, f"{path}[{index}]") for index, one in enumerate(value))


def _part(value: object, path: str) -> str:
    fields = Fields(value, path)
    kind = fields.required("type")
    if kind != "text":
        raise unsupported(f"{path}.type", f"parts of type {kind!r} are not supported")
    text = fields.text("text")
    fields.end()
    if text is None:
        raise invalid(f"{path}.text is missing", f"{path}.text")
    return text
