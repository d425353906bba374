"""The command `draftwire-verifier`, and `python -m cloud_verifier`."""

import sys

from draftwire.interrupts import QuietInterrupt


def main() -> int:
    """Run the command; returns the exit status."""
    with QuietInterrupt():
        from cloud_verifier.cli import main as command
    return command()


if __name__ == "__main__":
    sys.exit(main())
