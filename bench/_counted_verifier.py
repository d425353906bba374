"""`draftwire-verifier` that tells what it holds when it is asked.

    python -m bench._counted_verifier serve --model table --counts FILE

On SIGUSR1 it writes the counts of `bench._vitals.Held` to FILE, as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from bench._vitals import Held
from cloud_verifier.cli import main


def run() -> int:
    """The command, with one more option."""
    at = sys.argv.index("--counts")
    file = Path(sys.argv[at + 1])
    del sys.argv[at : at + 2]

    def tell(*_: object) -> None:
        half = file.with_suffix(".half")
        half.write_text(json.dumps(asdict(Held.now())), encoding="utf-8")
        half.rename(file)  # whoever waits for it finds all of it

    signal.signal(signal.SIGUSR1, tell)
    return main()


if __name__ == "__main__":
    sys.exit(run())
