"""The command `draftwire`, and `python -m edge_client`."""

import sys

from draftwire.interrupts import QuietInterrupt


def main() -> int:
    """Run the command; returns the exit status."""
    with QuietInterrupt():
        from edge_client.cli import main as command
    return command()


if __name__ == "__main__":
    sys.exit(main())
