"""The verifier's certificates, read again when their files change."""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from cloud_verifier.watched import WatchedFiles
from draftwire.errors import InvalidRequest
from draftwire.reason import reason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: the verifier's certificate chain and key, and whose clients may connect.

    With `client_ca` every client must show a certificate that one of those authorities signed.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `InvalidRequest` unless the files are there and belong together."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            for path in filter(None, _paths(self)):
                path.open("rb").close()  # the next line would not say which can't be read
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidRequest(
                f"the certificates can't be used: {reason(error, os.curdir)}",
                remedy="check --tls-cert, --tls-key (unencrypted) and --client-ca, all PEM files",
            ) from error


def server_credentials(
    files: TlsFiles,
    began: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> grpc.ServerCredentials:
    """Credentials that follow the files: connections made after a change get what is new.

    `began` is called at every handshake, on a thread of gRPC's.

    Files that don't belong together, as halfway through a change, are logged and not taken over.
    """
    watched = WatchedFiles([path for path in _paths(files) if path is not None], clock)
    lock = threading.Lock()  # asked at every handshake, by gRPC's own threads

    def fresh() -> Any:
        began()
        with lock:
            if not watched.changed():
                return None
            try:
                files.check()
                found = _configuration(files)
            except (InvalidRequest, OSError) as error:
                logger.error("the certificates stay as they were: %s", error)
                return None
            logger.info("the certificates were read anew")
            return found

    return grpc.dynamic_ssl_server_credentials(
        _configuration(files), fresh, require_client_authentication=files.client_ca is not None
    )


def _configuration(files: TlsFiles) -> Any:
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    roots = None if files.client_ca is None else files.client_ca.read_bytes()
    return grpc.ssl_server_certificate_configuration([pair], roots)


def _paths(files: TlsFiles) -> tuple[Path | None, ...]:
    return files.certificate, files.key, files.client_ca
