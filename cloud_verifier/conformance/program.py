"""The client under test as a program: a task on its stdin, a result on its stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from draftwire.errors import InvalidRequest
from draftwire.reason import reason

_LONGEST_LINE = 1 << 20
_GRACE_S = 1.0
"""How long a program may take to end when there are no more tasks."""


class Program:
    """Runs a command for one task after another.

    It may end after each, and is then started again, or go on to the next. Close it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def answer(
        self, task: dict[str, Any], timeout_s: float, begun: Callable[[], bool]
    ) -> dict[str, Any]:
        """The program's answer; what became of it where there is none, as `error`.

        `begun` says whether the task has been begun, so that it can't be given once more. Raises
        `InvalidRequest` if the program can't be started.
        """
        try:
            async with asyncio.timeout(timeout_s):
                kept = self._process is not None
                result = await self._ask(task)
                if result is None and kept and not begun():  # it had ended with the task before
                    await self.close()
                    result = await self._ask(task)
        except TimeoutError:
            await self.close()
            return {"error": f"no answer in {timeout_s:g} s"}
        if result is not None:
            return result
        status = self._process.returncode if self._process is not None else None
        await self.close()
        return {"error": f"it ended without an answer, exit status {status}"}

    async def _ask(self, task: dict[str, Any]) -> dict[str, Any] | None:
        process = await self._started()
        assert process.stdin is not None  # noqa: S101 (both are pipes)
        assert process.stdout is not None  # noqa: S101
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
            await process.stdin.drain()
        while line := await process.stdout.readline():
            with contextlib.suppress(ValueError):
                result = json.loads(line)
                if isinstance(result, dict) and result.keys() & {"tokens", "error"}:
                    return result
        await process.wait()
        return None

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            pipe = asyncio.subprocess.PIPE
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=pipe, stdout=pipe, limit=_LONGEST_LINE
                )
            except OSError as error:
                raise InvalidRequest(
                    f"{self._command[0]} can't be started: {reason(error)}",
                    remedy="give the client's command after --",
                ) from error
        return self._process

    async def close(self) -> None:
        """End the program."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _GRACE_S)
        except TimeoutError:
            process.kill()
            await process.wait()
