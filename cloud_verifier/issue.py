"""`draftwire-verifier keys` and `certs`: what others need to be let in."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from draftwire.command_line import HelpFormatter, positive


def add_issuing(commands: Any) -> None:
    """Add both commands to the parser's."""
    _add_keys(commands)
    _add_certs(commands)


def issue(arguments: argparse.Namespace) -> int:
    """Run one of them; returns the exit status."""
    if arguments.command == "keys":
        from cloud_verifier.auth import new_key

        key, line = new_key(arguments.name)
        print(line)
        print(f"the API key of {arguments.name}, not stored anywhere: {key}", file=sys.stderr)
        return 0
    from cloud_verifier.certificates import make

    hosts = arguments.host or ["localhost", "127.0.0.1", "::1"]
    made = make(Path(arguments.folder), hosts, client=arguments.client, days=arguments.days)
    print("\n".join(map(str, made)))
    return 0


def _add_keys(commands: Any) -> None:
    keys = commands.add_parser(
        "keys",
        help="make API keys",
        description="Make an API key. The key is printed on stderr, this once; the line for the "
        "keys file goes to stdout. To it can be added, as JSON: expires (as in "
        '"2027-01-31T00:00:00Z"), sessions, tokens_per_minute and wasted_drafts_per_minute.',
        formatter_class=HelpFormatter,
    )
    keys.add_argument("action", choices=["new"], help="what to do")
    keys.add_argument("name", metavar="NAME", help="whose it is: letters, digits, . and -")


def _add_certs(commands: Any) -> None:
    certs = commands.add_parser(
        "certs",
        help="make certificates for development",
        description="Make a development authority in DIR (ca.pem, ca.key), unless it is there, and "
        "from it certificates for a verifier (server.pem, server.key) and for a client. Needs the "
        "openssl command.",
        formatter_class=HelpFormatter,
    )
    certs.add_argument("folder", metavar="DIR", help="where they go; it holds secrets")
    certs.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a name or IP address of the verifier; may be repeated (default: this machine's "
        "loopback names)",
    )
    certs.add_argument(
        "--client", default="device", metavar="NAME", help="name of the client and its files"
    )
    certs.add_argument("--days", type=positive, default=30, metavar="N", help="days they are valid")
