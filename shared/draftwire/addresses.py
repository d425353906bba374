"""Addresses of verifiers: their parts, and whether others can reach them."""

from __future__ import annotations

import contextlib
import ipaddress

from draftwire.errors import InvalidRequest

UNIX = "unix:"


def split_address(address: str, *, lowest_port: int = 1) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; brackets around an IPv6 host are taken off.

    Raises `InvalidRequest` for an address of another form.
    """
    host, _, port = address.rpartition(":")
    odd = any(letter.isspace() or letter == "," for letter in host)
    if not host or odd or not port.isdecimal() or not lowest_port <= int(port) < 2**16:
        raise InvalidRequest(f"{address!r} is no address", remedy="give HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def stays_here(address: str) -> bool:
    """Whether what is sent to `address` never leaves this machine: loopback, or `unix:PATH`."""
    if address.startswith(UNIX):
        return True
    host = split_address(address, lowest_port=0)[0]
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
