"""Who calls: whose sessions a call may touch, and what it may use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cloud_verifier.auth import Key, Keys
from cloud_verifier.quotas import Account


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever a call was admitted for. Sessions belong to `owner`."""

    owner: str = ""
    account: Account | None = None
    key: Key | None = None


class Gate:
    """Admits calls by API key if there are `keys`, else by client certificate if TLS asks for one.

    Without either everyone is the same caller.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys

    @property
    def asks(self) -> bool:
        """Whether a key is asked for."""
        return self._keys is not None

    def admit(
        self, metadata: Iterable[tuple[str, str | bytes]], peer: Mapping[str, Iterable[bytes]]
    ) -> Caller:
        """Who sent these headers over a connection whose TLS properties are `peer`.

        Raises `Unauthenticated`.
        """
        if self._keys is not None:
            sent = next((value for name, value in metadata if name == "authorization"), "")
            key = self._keys.admit(sent if isinstance(sent, str) else "")
            return Caller(f"key {key.name}", self._keys.account(key), key)
        for name in filter(None, peer.get("x509_common_name", ())):
            return Caller(f"certificate {name.decode(errors='backslashreplace')}")
        for certificate in peer.get("x509_pem_cert", ()):  # no name: it is its own only
            return Caller(f"unnamed certificate {hashlib.sha256(certificate).hexdigest()}")
        return Caller()

    def recheck(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if a caller would not be admitted any more."""
        if self._keys is not None and caller.key is not None:
            self._keys.recheck(caller.key)
