"""`python -m cloud_verifier` is `draftwire-verifier`."""

import sys

from cloud_verifier.cli import main

sys.exit(main())
