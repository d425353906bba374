"""`python -m edge_client` is `draftwire`."""

import sys

from edge_client.cli import main

sys.exit(main())
