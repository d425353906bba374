"""API keys: who may use the verifier, for how long and how much.

A keys file has one JSON object a line: `name`, `sha256` (hexadecimal, of the key), and optionally
`expires` (ISO 8601, with a time zone) and the bounds of `Quota`. Empty lines and lines that begin
with # are skipped. A key is 256 random bits, so that one round of SHA-256 protects it: there is
nothing to guess, and a slow hash would only give whoever sends wrong keys a way to keep us busy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from cloud_verifier.quotas import Account, Quota
from cloud_verifier.watched import WatchedFiles
from draftwire.errors import InvalidRequest, Unauthenticated
from draftwire.reason import reason

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_QUOTAS = tuple(bound.name for bound in fields(Quota))
_KNOWN = {"name", "sha256", "expires", *_QUOTAS}
_REMEDY = "give the API key that the verifier's operator made for you"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One line of the file. Several keys may bear one name, which owns the sessions."""

    name: str
    digest: bytes = field(repr=False)
    expires: datetime | None = None
    quota: Quota = field(default_factory=Quota)


_NOBODY = Key(name="", digest=bytes(32))  # compared for names that nobody bears: takes as long


def new_key(name: str) -> tuple[str, str]:
    """A key for `name` and the line to store for it. Raises `InvalidRequest` for a bad name."""
    _check(_NAME.fullmatch(name), f"{name!r} is no name of a key", "use letters, digits, . and -")
    key = f"dw_{name}_{secrets.token_hex(32)}"
    return key, json.dumps({"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()})


def parse(lines: Iterable[str]) -> list[Key]:
    """The keys of a file. Raises `InvalidRequest` that names the line."""
    keys: list[Key] = []
    quotas: dict[str, Quota] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            keys.append(key := _key(json.loads(line)))
            alike = quotas.setdefault(key.name, key.quota) == key.quota
            _check(alike, f"an earlier key of {key.name} has other quotas, but they share one")
        except (InvalidRequest, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(
                f"line {number} of the keys file: {error}",
                remedy="make lines with draftwire-verifier keys new NAME",
            ) from error
    return keys


class Keys:
    """The keys of a file, read again when it changes.

    A file that can't be read or understood raises `InvalidRequest` at first; later it is logged,
    and the keys that were known go on. `now` tells the seconds since 1970, `clock` seconds that
    rise evenly.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(path)
        self._now = now
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._files = WatchedFiles([self._path], clock)
        self._load()

    def admit(self, authorization: str) -> Key:
        """The key that an `authorization` header names. Raises `Unauthenticated`."""
        self._refresh()
        scheme, _, presented = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not presented:
            raise Unauthenticated("no API key was sent", remedy=_REMEDY)
        name = presented.removeprefix("dw_").rpartition("_")[0]
        digest = hashlib.sha256(presented.encode()).digest()
        found = None
        for key in self._by_name.get(name, [_NOBODY]):
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise Unauthenticated("the API key is not known here", remedy=_REMEDY)
        self._check_expiry(found)
        return found

    def recheck(self, key: Key) -> None:
        """Raise `Unauthenticated` if a key that was admitted has been revoked or has expired."""
        self._refresh()
        if not any(other.digest == key.digest for other in self._by_name.get(key.name, ())):
            raise Unauthenticated("the API key was revoked", remedy=_REMEDY)
        self._check_expiry(key)

    def account(self, key: Key) -> Account:
        """What the name that `key` bears has in use."""
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = Account(key.quota, self._clock())
        elif account.quota != key.quota:
            account.renew(key.quota, self._clock())
        return account

    def _check_expiry(self, key: Key) -> None:
        if key.expires is not None and key.expires.timestamp() <= self._now():
            raise Unauthenticated(f"the API key expired on {key.expires:%Y-%m-%d}", remedy=_REMEDY)

    def _refresh(self) -> None:
        if self._files.changed():
            try:
                self._load()
                logger.info("%d API keys were read anew", sum(map(len, self._by_name.values())))
            except InvalidRequest as error:
                logger.error("the keys stay as they were: %s", error)

    def _load(self) -> None:
        try:
            keys = parse(self._path.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"{self._path} can't be read: {reason(error)}", remedy="give another --keys FILE"
            ) from error
        by_name: dict[str, list[Key]] = {}
        for key in keys:
            by_name.setdefault(key.name, []).append(key)
        self._by_name = by_name


def _key(entry: object) -> Key:
    _check(isinstance(entry, dict), "it is no JSON object")
    assert isinstance(entry, dict)  # noqa: S101 (for mypy)
    unknown = ", ".join(sorted(set(entry) - _KNOWN))
    _check(not unknown, f"{unknown} is not known")
    name, digest, expires = entry.get("name"), entry.get("sha256"), entry.get("expires")
    _check(isinstance(name, str) and _NAME.fullmatch(name), f"{name!r} is no name of a key")
    _check(isinstance(digest, str) and _DIGEST.fullmatch(digest), "sha256 is not 64 hex digits")
    moment = None
    if expires is not None:
        moment = datetime.fromisoformat(str(expires))
        _check(moment.tzinfo is not None, f"expires has no time zone: {expires}")
        moment = moment.astimezone(UTC)
    quota = Quota(**{bound: entry[bound] for bound in _QUOTAS if bound in entry})
    return Key(name=str(name), digest=bytes.fromhex(str(digest)), expires=moment, quota=quota)


def _check(held: object, message: str, remedy: str = "") -> None:
    if not held:
        raise InvalidRequest(message, remedy=remedy)
