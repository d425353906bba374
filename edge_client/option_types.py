"""Options of the right types: what is of another is refused by name, before any work."""

from __future__ import annotations

import functools
import numbers
import operator
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from draftwire.errors import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "text"}


def typed(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function of options raise `InvalidRequest` for one of another type than it says.

    Integers and numbers of other libraries, like numpy's, become Python's own; whatever can be
    iterated over may stand for a sequence.
    """
    kinds = get_type_hints(function)

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        for name, value in options.items():
            if name in kinds:
                options[name] = as_kind(value, kinds[name], name)
        return function(*args, **options)

    return call


def as_kind(value: object, kind: Any, name: str) -> Any:
    """The value of an option of this type. Raises `InvalidRequest` if it is none."""
    try:
        return _plain(value, kind)
    except TypeError:
        raise InvalidRequest(
            f"{name} is {reprlib.repr(value)}, not {_words(kind)}", remedy="see edge_client.options"
        ) from None


def _plain(value: Any, kind: Any) -> Any:
    """Raises `TypeError` for a value of another kind."""
    of = get_args(kind)
    match get_origin(kind) or kind:
        case types.UnionType:
            return _any_of(value, of)
        case one if one is int and not isinstance(value, bool):
            return operator.index(value)
        case one if one is float:
            return _number(value)
        case one if one is Sequence and isinstance(value, Iterable):
            if not isinstance(value, str | bytes | Mapping):
                return tuple(_plain(each, of[0]) for each in value)
        case one if one is Mapping and isinstance(value, Mapping):
            return {_plain(key, of[0]): _plain(value[key], of[1]) for key in value}
        case one if one is Any or (one not in (int, float) and isinstance(value, one)):
            return value
    raise TypeError


def _number(value: object) -> float:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int | float):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError


def _any_of(value: Any, kinds: Sequence[Any]) -> Any:
    for kind in kinds:
        try:
            return _plain(value, kind)
        except TypeError:
            continue
    raise TypeError


def _words(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(map(_words, get_args(kind)))
    inner = [_words(one) for one in get_args(kind)]
    match get_origin(kind):
        case None:
            return "None" if kind is types.NoneType else _WORDS.get(kind, kind.__name__)
        case sequence if sequence is Sequence:
            return f"a sequence with each {inner[0]}"
        case _:
            return "a mapping"
