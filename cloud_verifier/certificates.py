"""`draftwire-verifier certs`: a certificate authority for development.

Runs the `openssl` command, which is where TLS is tried out; a verifier has no other use for a
library that makes certificates.
"""

from __future__ import annotations

import ipaddress
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from draftwire.errors import InvalidRequest, MissingDependency
from draftwire.reason import reason

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_NAME = re.compile(r"[A-Za-z0-9*:][A-Za-z0-9.:-]{0,62}")


def make(folder: Path, hosts: Sequence[str], *, client: str, days: int) -> list[Path]:
    """Make `server.pem`, valid for `hosts`, and `CLIENT.pem`, each with its `.key`, in `folder`.

    Signed by `ca.pem` there, which is made where it is missing. Returns what was written. Raises
    `InvalidRequest` for what openssl refuses, `MissingDependency` where there is none.
    """
    for name in (*hosts, client):
        if not _NAME.fullmatch(name) or client in ("ca", "server"):
            raise InvalidRequest(
                f"{name!r} is no name for a certificate",
                remedy="a host is a DNS name or an IP address, a client has a name of its own",
            )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{folder} can't be made: {reason(error)}") from error
    ca = folder / "ca"
    made = []
    if not _pem(ca).exists():
        made += [_pem(ca), _key(ca)]
        _openssl(
            *("req", "-x509", *_KEY, "-days", str(days), "-subj", "/CN=Draftwire development CA"),
            *("-addext", "basicConstraints=critical,CA:TRUE,pathlen:0"),
            *("-addext", "keyUsage=critical,keyCertSign"),
            *("-out", str(_pem(ca)), "-keyout", str(_key(ca))),
        )
    names = ",".join(f"{_kind(host)}:{host}" for host in hosts)
    for name, subject, extensions in (
        ("server", hosts[0], f"extendedKeyUsage=serverAuth\nsubjectAltName={names}\n"),
        (client, client, "extendedKeyUsage=clientAuth\n"),
    ):
        _sign(folder / name, ca, subject, extensions, days)
        made += [_pem(folder / name), _key(folder / name)]
    return made


def _sign(path: Path, ca: Path, subject: str, extensions: str, days: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        request, extra = Path(folder, "request"), Path(folder, "extensions")
        extra.write_text(extensions, encoding="utf-8")
        _openssl(
            *("req", "-new", *_KEY, "-subj", f"/CN={subject}"),
            *("-out", str(request), "-keyout", str(_key(path))),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(_pem(ca)), "-CAkey", str(_key(ca))),
            *("-CAserial", str(Path(folder, "serial")), "-CAcreateserial"),
            *("-days", str(days), "-extfile", str(extra), "-out", str(_pem(path))),
        )


def _openssl(*arguments: str) -> None:
    command = ["openssl", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise MissingDependency(
            "there is no openssl command", remedy="install openssl, or bring your own certificates"
        ) from None
    if done.returncode:
        raise InvalidRequest(f"openssl {arguments[0]}: {done.stderr.strip().splitlines()[-1]}")


def _kind(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "DNS"
    return "IP"


def _pem(path: Path) -> Path:
    return path.with_name(f"{path.name}.pem")


def _key(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")
