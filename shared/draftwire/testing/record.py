"""What went over a wire, frame by frame, for people and for other programs to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from draftwire import codec
from draftwire.errors import DraftwireError, LinkLost
from draftwire.types import ClientFrame, ServerFrame

Entry: TypeAlias = dict[str, Any]


class Record:
    """The frames of all streams in the order in which they passed one end, numbered from 1."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def sent(self, stream: int, frame: ClientFrame) -> None:
        """The client sent a frame."""
        self._add(stream, "client", codec.encode_client(frame))

    def told(self, stream: int, frame: ServerFrame) -> None:
        """The verifier sent a frame."""
        self._add(stream, "verifier", codec.encode_server(frame))

    def left(self, stream: int) -> None:
        """The client ended the stream, or it broke on its side."""
        self.entries.append({"stream": stream, "from": "client", "end": "left"})

    def failed(self, stream: int, error: DraftwireError) -> None:
        """The verifier ended the stream with a status; of a lost link there is no code."""
        end = {"status": error.status}
        if not isinstance(error, LinkLost):
            end["draftwire-code"] = error.code
        self.entries.append({"stream": stream, "from": "verifier", "end": end})

    def _add(self, stream: int, side: str, message: Message) -> None:
        entry = {"stream": stream, "from": side, "frame": readable(message)}
        self.entries.append(entry | {"bytes": message.SerializeToString(deterministic=True).hex()})


def readable(message: Message) -> dict[str, Any]:
    """A message as JSON's types: bytes in hexadecimal, enumerations by name.

    As on the wire, what is 0 or empty is left out.
    """
    return {field.name: _readable(field, value) for field, value in message.ListFields()}


def _readable(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Message):
        return readable(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_readable(field, one) for one in value]
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value


def as_text(about: Mapping[str, Any], record: Record) -> str:
    """A JSON object with what is said `about` the frames, and the frames, one a line."""
    head = json.dumps(about, ensure_ascii=False)[:-1]
    lines = ",\n".join(json.dumps(entry) for entry in record.entries)
    return f'{head},\n"frames": [\n{lines}\n]}}\n'
