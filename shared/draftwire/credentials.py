"""How a client proves who it is, and by what it knows the verifier."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from draftwire.addresses import stays_here
from draftwire.errors import InvalidRequest, LinkNotSecure
from draftwire.reason import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client brings to a connection.

    `ca` is a PEM file of the authorities it trusts, in place of the usual ones; `certificate` and
    `key` are PEM files of its own, for mutual TLS; `api_key` says whose sessions these are.
    Connections that leave the machine use TLS, and so does any for which a file is given; with
    `insecure` none does. With `padding`, 16 to 4096, frames of both sides are made multiples of
    that many bytes long, so that TLS shows less of how many tokens they hold. Raises
    `InvalidRequest` where these contradict each other.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    api_key: str = field(default="", repr=False)
    insecure: bool = False
    padding: int = 0

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequest(
                "a certificate needs its key", remedy="give both --cert and --key, or neither"
            )
        if self.insecure and (self.ca or self.certificate):
            raise InvalidRequest(
                "plaintext was asked for, and certificates given",
                remedy="leave out --insecure, or --ca and --cert",
            )
        if not (self.api_key.isascii() and self.api_key.isprintable()) or " " in self.api_key:
            raise InvalidRequest("the API key holds characters that none has")
        check_padding(self.padding)

    def secures(self, address: str) -> bool:
        """Whether a connection to `address` uses TLS."""
        return not self.insecure and bool(self.ca or self.certificate or not stays_here(address))

    def files(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Contents of `ca`, `key` and `certificate`. Raises `LinkNotSecure`."""
        return _read(self.ca), _read(self.key), _read(self.certificate)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Headers of every call."""
        key = (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()
        padding = (("draftwire-padding", str(self.padding)),) if self.padding else ()
        return key + padding


def check_padding(multiple: int) -> None:
    """Raise `InvalidRequest` for a multiple that no frame is padded to."""
    if multiple and not 16 <= multiple <= 4096:
        raise InvalidRequest(
            f"frames can't be padded to {multiple} bytes", remedy="give 0 or 16 to 4096"
        )


def tls_failure(address: str, details: str) -> LinkNotSecure | None:
    """The error that gRPC's words for a connection that failed stand for, if TLS was to blame."""
    if "WRONG_VERSION_NUMBER" in details:
        why = "it does not speak TLS"
    elif "Hostname Verification" in details:
        why = "its certificate is for another host"
    elif "CERTIFICATE_VERIFY_FAILED" in details:
        why = details.partition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
    elif "handshake failed" in details:
        why = details.rpartition("handshake failed ")[2]
    else:
        return None
    return LinkNotSecure(
        f"the verifier at {address} can't be trusted: {why}",
        remedy="check the address and --ca; someone may be in between. "
        "Plaintext takes --insecure on both sides",
    )


def _read(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LinkNotSecure(
            f"{path} can't be read: {reason(error)}", remedy="give the path of a PEM file"
        ) from error
