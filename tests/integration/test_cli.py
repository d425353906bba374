"""The commands as a person or a service manager meets them: real processes and their output."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil
import pytest

from cloud_verifier.cli import build_parser as verifier_parser
from draftwire.testing.demo import demo_model_path
from edge_client.arguments import build_parser as device_parser
from edge_client.verifier_process import VerifierProcess

DEVICE = [sys.executable, "-m", "edge_client"]
VERIFIER = [sys.executable, "-m", "cloud_verifier"]
TABLE = ["serve", "--model", "table", "--listen", "127.0.0.1:0"]
READY = re.compile(r"serving table on 127\.0\.0\.1:(\d+) \(ready after [\d.]+ s\)\n")
WITHIN_S = 120.0
"""For what takes seconds, on a machine that may be busy."""


def run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, capture_output=True, text=True, timeout=WITHIN_S, check=False, **options
    )


@contextlib.contextmanager
def started(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own; on leaving, none of that session may be left."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        yield process
        assert session_of(process.pid) == []
    finally:
        for left in session_of(process.pid):
            left.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            pipe.close()


def session_of(leader: int) -> list[psutil.Process]:
    """Processes of a session, other than the zombie that its leader may be."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def line_with(pipe: IO[str] | None, text: str) -> str:
    """The first line that holds `text`."""
    assert pipe is not None
    for line in pipe:
        if text in line:
            return line
    raise AssertionError(f"it ended without a line with {text!r}")


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr with the error's code and what to do; nothing else, no traceback."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    message = done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert message.startswith(("draftwire: ", "draftwire-verifier: "))
    assert " — " in message  # the remedy
    for word in words:
        assert word in message


# ------------------------------------------------------------------ help


COMMANDS = [
    ["draftwire"],
    ["draftwire", "demo"],
    ["draftwire", "generate"],
    ["draftwire", "chat"],
    ["draftwire", "translate"],
    ["draftwire-verifier"],
    ["draftwire-verifier", "serve"],
    ["draftwire-verifier", "health"],
    ["draftwire-verifier", "keys"],
    ["draftwire-verifier", "certs"],
]


def parser_of(command: Sequence[str]) -> argparse.ArgumentParser:
    parser = device_parser() if command[0] == "draftwire" else verifier_parser()
    for name in command[1:]:
        (actions,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = actions.choices[name]
    return parser


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_its_defaults(command: list[str]) -> None:
    installed = Path(sys.executable).parent / command[0]
    done = run([str(installed), *command[1:], "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    told = " ".join(done.stdout.split())
    for action in parser_of(command)._actions:
        assert action.help or action.choices, action.dest
        if action.default not in (None, argparse.SUPPRESS, []) and action.default is not False:
            assert f"(default: {action.default})" in told


@pytest.mark.parametrize(
    "arguments",
    [
        [*DEVICE, "generate", "hi", "--top-k", "many"],
        [*DEVICE, "demo", "--rtt", "-1"],
        [*DEVICE, "demo", "--repeat", "0"],
        [*DEVICE, "demo", "--drafter", "lazy"],
        [*DEVICE, "demo", "--drafter", "noisy:much"],
        [*DEVICE, "shout"],
        [*VERIFIER, "serve"],
        [*VERIFIER, *TABLE, "--max-sessions", "0"],
        [*VERIFIER, *TABLE, "--quantum"],
    ],
    ids=lambda arguments: " ".join(arguments[2:]),
)
def test_wrong_usage_is_told_as_such(arguments: list[str]) -> None:
    done = run(arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"see `draftwire.* --help`", done.stderr.splitlines()[1])
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ([*DEVICE, "generate", "hi"], "argparse"),
        ([*DEVICE, "generate", "hi"], "draftwire.types"),
        ([*DEVICE, "generate", "hi"], "grpc"),
        ([*VERIFIER, *TABLE], "argparse"),
        ([*VERIFIER, *TABLE], "grpc"),
        pytest.param([*VERIFIER, "doctor"], "torch._C", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value[2].rpartition("_")[0],
)
def test_an_interrupt_while_modules_load_ends_it_without_a_word(
    command: list[str], module: str
) -> None:
    python, *rest = command
    with started([python, "-X", "importtime", *rest]) as process:
        line_with(process.stderr, f" {module}\n")
        process.send_signal(signal.SIGINT)
        output, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert output == ""
    assert [line for line in said.splitlines() if not line.startswith("import time:")] == []


# ------------------------------------------------------------------ the verifier


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_verifier_says_when_it_is_ready_and_stops_cleanly(number: signal.Signals) -> None:
    with started([*VERIFIER, *TABLE]) as process:
        ready = process.stdout.readline()
        assert READY.fullmatch(ready), ready
        os.killpg(process.pid, number)
        output, log = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0
        assert output == ""  # one line is all that stdout gets
        assert "Traceback" not in log


@pytest.mark.parametrize(
    "address",
    ["nonsense", "127.0.0.1", "127.0.0.1:", "127.0.0.1:port", "127.0.0.1:70000", ":7433", ""],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    done = run([*VERIFIER, "serve", "--model", "table", "--listen", address])
    assert_refused(done, "INVALID_REQUEST", repr(address), "--listen HOST:PORT")


def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run([*VERIFIER, "serve", "--model", "/no/such/model", "--listen", address])
    assert_refused(done, "INVALID_REQUEST", address, "in use")


def test_a_host_that_is_not_this_one_is_refused() -> None:
    done = run([*VERIFIER, "serve", "--model", "table", "--listen", "192.0.2.1:0", "--insecure"])
    assert_refused(done, "INVALID_REQUEST", "192.0.2.1")


def test_plaintext_for_others_to_reach_must_be_asked_for() -> None:
    open_to_all = [*VERIFIER, "serve", "--model", "table", "--listen", "0.0.0.0:0"]
    assert_refused(run(open_to_all), "INVALID_REQUEST", "--insecure")
    with started([*open_to_all, "--insecure"]) as process:
        line_with(process.stdout, "serving table on 0.0.0.0:")
        process.terminate()
        assert process.wait(WITHIN_S) == 0


def test_health_tells_a_verifier_that_serves_from_none() -> None:
    with started([*VERIFIER, *TABLE]) as process:
        ready = READY.fullmatch(process.stdout.readline())
        assert ready
        address = f"127.0.0.1:{ready[1]}"
        well = run([*VERIFIER, "health", address])
        assert (well.returncode, well.stdout) == (0, f"{address}: serving\n")
        process.terminate()
        process.wait(WITHIN_S)
        gone = run([*VERIFIER, "health", address])
        assert gone.returncode == 1
        assert gone.stdout.startswith(f"{address}: UNAVAILABLE")
        assert "Traceback" not in gone.stderr


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "word"),
    [("/no/such/model.gguf", "MODEL_NOT_FOUND"), (os.devnull, "MODEL"), ("", "MODEL_NOT_FOUND")],
)
def test_a_model_that_is_none_is_refused(model: str, word: str) -> None:
    done = run([*VERIFIER, "serve", "--model", model, "--listen", "127.0.0.1:0"])
    assert_refused(done, word)


@pytest.mark.models
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"]
)
def test_loading_can_be_interrupted(number: signal.Signals, status: int) -> None:
    serve = ["serve", "--model", str(demo_model_path()), "--listen", "127.0.0.1:0"]
    with started([*VERIFIER, *serve]) as process:
        line_with(process.stderr, "loading")
        os.killpg(process.pid, number)
        output, log = process.communicate(timeout=WITHIN_S)
        assert process.returncode == status
        assert output == ""
        assert "Traceback" not in log


# ------------------------------------------------------------------ the device


@pytest.fixture(scope="module")
def starting() -> list[str]:
    """What the verifier wrote while it started, to stdout or stderr."""
    return []


@pytest.fixture(scope="module")
def address(starting: list[str]) -> Iterator[str]:
    """A verifier of the demo model."""
    serve = ["--model", str(demo_model_path()), "--kv-tokens", "2048", "--threads", "1"]
    with VerifierProcess(serve, progress=starting.append) as verifier:
        yield verifier.address


def device(address: str, command: str, *arguments: str, tokens: int = 16) -> list[str]:
    options = ["--verifier", address, "--threads", "1", "--max-tokens", str(tokens)]
    return [*DEVICE, command, *arguments, *options]


def in_terminal(command: Sequence[str], **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    output: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # how a terminal ends
            while data := os.read(ours, 4096):
                output.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        variables = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env=variables | {"TERM": "xterm-256color"} | environment,
            timeout=WITHIN_S,
            check=True,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return b"".join(output).decode().replace("\r\n", "\n")


@pytest.mark.models
@pytest.mark.usefixtures("address")
def test_a_verifier_that_starts_writes_only_what_it_has_to_say_itself(starting: list[str]) -> None:
    assert starting
    ours = re.compile(r"\S+ \S+ INFO cloud_verifier\.\w+: ")
    assert [line for line in starting if not ours.match(line)] == []


@pytest.mark.models
def test_a_verifier_that_is_not_there_is_reported_within_seconds() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    started_at = time.monotonic()
    done = run(device(address, "generate", "hi"))
    assert_refused(done, "LINK_LOST", address, "draftwire-verifier")
    assert time.monotonic() - started_at < 12


@pytest.mark.models
def test_a_draft_model_that_is_none_is_refused() -> None:
    assert_refused(run([*DEVICE, "generate", "hi", "--model", "/no/such/model.gguf"]), "MODEL")


@pytest.mark.models
def test_generate_writes_the_text_to_stdout_and_how_it_went_to_stderr(address: str) -> None:
    report = json.loads(run(device(address, "generate", "Name a colour.", "--json")).stdout)
    assert len(report["token_ids"]) <= 16
    assert report["text"]
    done = run(device(address, "generate", "Name a colour."))
    assert (done.returncode, done.stdout) == (0, report["text"] + "\n")
    assert re.search(r"\d+ tokens, .*τ .*TTFT .*TPOT .*RTT .* B up, \d+ B down", done.stderr)
    piped = run(device(address, "generate"), input="Name a colour.\n")
    assert piped.stdout == done.stdout


@pytest.mark.models
def test_a_terminal_gets_colours_unless_told_otherwise(address: str) -> None:
    generate = device(address, "generate", "Count to thirty.", tokens=24)
    generate += ["--num-draft-tokens", "4"]
    plain = run(generate).stdout
    tinted = in_terminal(generate)
    assert "\x1b[32m" in tinted
    assert re.sub(r"\x1b\[[0-9;]*m", "", tinted) == plain
    assert not re.search(r"\x1b\[[0-9;]*3\d", in_terminal(generate, NO_COLOR="1"))


@pytest.mark.models
def test_drafts_are_shown_on_a_terminal_before_they_are_final(address: str) -> None:
    generate = device(address, "generate", "Count to thirty.", tokens=24)
    generate += ["--num-draft-tokens", "4", "--show-drafts", "--offline-tokens", "20"]
    written = in_terminal(generate)
    assert written.index("\x1b[2m") < written.index("\x1b[32m")  # dimmed, then tinted


@pytest.mark.models
def test_a_reader_that_has_seen_enough_ends_it_without_a_fuss(address: str) -> None:
    with started(device(address, "generate", "Count to a hundred.", tokens=200)) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(WITHIN_S) == 1
        assert process.stderr.read() == ""


@pytest.mark.models
def test_chat_takes_its_turns_from_a_pipe_and_sends_only_what_is_new(address: str) -> None:
    system = "You are brief. " * 120
    done = run(
        # Answers of a few tokens, so that it is the prompts that count.
        device(address, "chat", "--system", system, "--max-tokens", "8"),
        input="Hello\n\nName a colour.\n/quit\nno\n",
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    sent = [int(count) for count in re.findall(r"(\d+) B up", done.stderr)]
    assert len(sent) == 2
    assert sent[1] < sent[0] / 2


class Keyboard:
    """A process whose stdin and stderr, and stdout if `stdout` is None, are a terminal."""

    def __init__(self, command: Sequence[str], stdout: int | None = None) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def until(self, text: str) -> str:
        """What is written up to `text`, which must come."""
        written = b""
        while not written.endswith(text.encode()):
            assert select.select([self.ours], [], [], WITHIN_S)[0], written
            written += os.read(self.ours, 1)
        return written.decode()

    def press(self, keys: str) -> None:
        """Once the process has waited for a moment: Python's readline may miss an earlier Ctrl-C.

        It looks for signals, then waits for a key; what comes in between is told at the next key.
        """
        asleep = 0
        while asleep < 5:
            time.sleep(0.02)
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
            asleep = asleep + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
        os.write(self.ours, keys.encode())

    def ended(self) -> int:
        """The exit status."""
        with contextlib.suppress(OSError):  # how a terminal ends
            while os.read(self.ours, 4096):
                pass
        status = self.process.wait(WITHIN_S)
        os.close(self.ours)
        return status


CHAT = [*DEVICE, "chat", "--threads", "1", "--verifier", "127.0.0.1:1"]
HINT = "(Ctrl-D or /quit ends)\r\n"


@pytest.mark.models
def test_ctrl_c_drops_the_line_and_ends_the_chat_at_the_second_empty_one() -> None:
    user = Keyboard(CHAT)
    user.until("› ")
    for keys in ("half a question", "another", "\n"):  # none of them is an empty prompt's second
        user.press(keys)
        user.until("› " if keys == "\n" else keys)
        user.press("\x03")
        user.until(HINT)
        user.until("› ")
    user.press("\x03")
    assert user.ended() == 130


@pytest.mark.models
@pytest.mark.parametrize("keys", ["\x04", "/quit\n"], ids=["Ctrl-D", "/quit"])
def test_a_chat_that_is_ended_is_done(keys: str) -> None:
    user = Keyboard(CHAT)
    user.until("› ")
    user.press("\x03")
    user.until(HINT)
    user.until("› ")
    user.press(keys)
    assert user.ended() == 0


@pytest.mark.models
def test_a_chats_prompt_is_none_of_its_output(tmp_path: Path) -> None:
    with (tmp_path / "answers").open("w") as file:
        user = Keyboard(CHAT, stdout=file.fileno())
        user.until("› ")
        user.press("/quit\n")
        assert user.ended() == 0
    assert (tmp_path / "answers").read_text() == ""


# ------------------------------------------------------------------ the demo

REPORTED = {
    *("text", "token_ids", "identical_to_target", "tokens_per_s", "baseline_tokens_per_s"),
    *("speedup", "rounds", "drafted", "accepted", "alpha", "tau", "ttft_ms", "tpot_ms"),
    *("rtt_ms", "bytes_up", "bytes_down", "k_mean"),
}


@pytest.mark.models
def test_the_demo_prints_one_json_object_and_nothing_else_on_stdout() -> None:
    with started([*DEVICE, "demo", "--json", "--max-tokens", "16"]) as process:
        output, said = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0, said
    report = json.loads(output)
    assert set(report) >= REPORTED
    assert report["identical_to_target"] is True
    assert len(report["token_ids"]) == 16
    assert report["speedup"] == pytest.approx(
        report["tokens_per_s"] / report["baseline_tokens_per_s"], rel=1e-2
    )
    assert "warming up" in said  # it says what takes long, and elsewhere
    assert said.count("loading /") <= 1


@pytest.mark.models
def test_a_drafter_made_wrong_on_purpose_changes_nothing_but_the_speed() -> None:
    with started([*DEVICE, "demo", "--drafter", "wrong", "--max-tokens", "16"]) as process:
        output, _ = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0
    assert "tokens identical" in output
    assert "\x1b" not in output


@pytest.mark.models
@pytest.mark.parametrize(
    ("moment", "whom", "number", "status"),
    [
        ("starting the verifier", "all", signal.SIGINT, 130),
        ("warming up", "all", signal.SIGINT, 130),
        ("warming up", "the parent", signal.SIGINT, 130),
        ("warming up", "the parent", signal.SIGTERM, 128 + signal.SIGTERM),
    ],
    ids=["Ctrl-C at the start", "Ctrl-C", "SIGINT to the parent only", "SIGTERM"],
)
def test_a_demo_that_is_stopped_leaves_nothing_behind(
    moment: str, whom: str, number: signal.Signals, status: int
) -> None:
    with started([*DEVICE, "demo"]) as process:
        line_with(process.stdout, moment)
        (os.killpg if whom == "all" else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=WITHIN_S)
        assert process.returncode == status
        assert "Traceback" not in said


@pytest.mark.parametrize("moment", [pytest.param("loading", marks=pytest.mark.models), "serving"])
def test_a_verifier_whose_parent_was_killed_stops(moment: str) -> None:
    model = str(demo_model_path()) if moment == "loading" else "table"
    script = (
        "import time; from edge_client.verifier_process import VerifierProcess\n"
        "say = lambda line: print(line, flush=True)\n"
        f"with VerifierProcess(['--model', {model!r}], progress=say):\n"
        "    say('serving')\n"
        "    time.sleep(600)"
    )
    with started([sys.executable, "-c", script]) as process:
        line_with(process.stdout, moment)
        os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + WITHIN_S
        while session_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)


def test_a_verifier_without_its_extra_names_it() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from cloud_verifier.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "serve", "--listen", "127.0.0.1:0", "--model", "a/b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 1
    assert "MISSING_DEPENDENCY: torch is not installed" in done.stderr
    assert "draftwire[cloud]" in done.stderr
    assert "Traceback" not in done.stderr


def test_input_that_is_no_text_is_refused_in_a_line() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "edge_client", "generate", "--model", "x", "-"],
        input=b"\xff",
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )
    assert ran.returncode == 1
    assert ran.stderr.decode() == "draftwire: INVALID_REQUEST: the input is not utf-8\n"
