"""What the examples share: a client of the verifier that the command line names."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from draftwire.testing.demo import demo_model_path
from edge_client import Credentials, EdgeClient
from edge_client.verifier_process import VerifierProcess


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that all examples take."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument(
        "--demo", action="store_true", help="take no input, and start a verifier if none is named"
    )
    arguments.add_argument("--verifier", metavar="HOST:PORT", help="default: 127.0.0.1:7433")
    arguments.add_argument("--model", metavar="FILE.gguf", help="default: the demo model")
    arguments.add_argument("--ca", metavar="FILE", help="authorities to trust")
    return arguments


@contextlib.contextmanager
def connected(arguments: argparse.Namespace, **options: Any) -> Iterator[EdgeClient]:
    """A client with these options; the API key is taken from the variable DRAFTWIRE_API_KEY."""
    model = arguments.model or demo_model_path()
    credentials = Credentials(ca=arguments.ca, api_key=os.environ.get("DRAFTWIRE_API_KEY", ""))
    with contextlib.ExitStack() as stack:
        address = arguments.verifier or "127.0.0.1:7433"
        if arguments.demo and not arguments.verifier:
            print("starting a verifier, which takes some seconds …", file=sys.stderr)
            serve = ["--model", str(model), "--kv-tokens", "8192", "--threads", "1"]
            address = stack.enter_context(VerifierProcess(serve)).address
        client = EdgeClient.from_model(address, model, credentials=credentials, **options)
        yield stack.enter_context(client)
