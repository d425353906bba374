"""A JSON object read field by field, so that whatever nobody has read can be refused by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from edge_client.endpoint.errors import invalid, unsupported


class Fields:
    """The fields of a JSON object at `path` of a request; null is as good as absent.

    Every reader takes its field. Raises `Refused`, which names the field, for a value of another
    type.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise invalid(f"{path or 'the body'} is not a JSON object", path or None)
        self._left: dict[str, Any] = {name: one for name, one in value.items() if one is not None}
        self._path = path

    def path(self, name: str) -> str:
        """How a field is named in errors."""
        return f"{self._path}.{name}" if self._path else name

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str) -> Any:
        """A field's value, of whatever type; None if there is none."""
        return self._left.pop(name, None)

    def required(self, name: str) -> Any:
        """A field's value; it must be there."""
        if name not in self._left:
            raise invalid(f"{self.path(name)} is missing", self.path(name))
        return self.take(name)

    def flag(self, name: str) -> bool | None:
        """A boolean."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(f"{self.path(name)} is not true or false", self.path(name))
        return value

    def integer(self, name: str, *, least: int | None = None) -> int | None:
        """An integer, `least` or more."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid(f"{self.path(name)} is not an integer", self.path(name))
        if least is not None and value < least:
            raise invalid(f"{self.path(name)} is {value}, not ≥ {least}", self.path(name))
        return value

    def number(self, name: str) -> float | None:
        """A number."""
        value = self.take(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise invalid(f"{self.path(name)} is not a number", self.path(name))
        return value

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise invalid(f"{self.path(name)} is not a string", self.path(name))
        return value

    def integers(self, name: str) -> Sequence[int] | None:
        """A list of integers."""
        value = self.take(name)
        if value is not None and not is_integers(value):
            raise invalid(f"{self.path(name)} is not a list of integers", self.path(name))
        return value  # type: ignore[no-any-return]

    def texts(self, name: str) -> str | Sequence[str] | None:
        """A string or a list of them."""
        value = self.take(name)
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise invalid(f"{self.path(name)} is no string or list of them", self.path(name))
        return value

    def inert(self, name: str, values: Collection[object]) -> None:
        """A field that isn't served, except for values that ask for what happens anyway."""
        if name in self._left and self.take(name) not in values:
            listed = ", ".join(map(repr, values))
            raise unsupported(self.path(name), remedy=f"leave it out, or use {listed}")

    def end(self) -> None:
        """Refuse what is left."""
        for name in self._left:
            raise unsupported(self.path(name))


def is_integers(value: object) -> bool:
    """Whether a value is a list of integers."""
    return isinstance(value, list) and all(type(one) is int for one in value)
