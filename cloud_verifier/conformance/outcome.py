"""What came of a scenario, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from cloud_verifier.conformance.case import Case

PASSED, FAILED, NOT_SHOWN, NOT_RUN = "passed", "failed", "not shown", "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether a client passed a scenario; if it `failed`, which rule it broke, and with what.

    A scenario is `not shown` where the client did nothing wrong, but what it is about never came
    about: `why` says what that is. `frame` is the number of a frame in its trace.
    """

    scenario: str
    state: str
    rule: int | None = None
    why: str = ""
    frame: int | None = None
    content: Any = None

    @classmethod
    def of(cls, case: Case) -> Outcome:
        """What came of a scenario that is over."""
        name, broken = case.scenario.name, case.broken
        if not case.streams and not case.over:
            return cls(scenario=name, state=NOT_RUN, why="no client came")
        if broken is None and not case.over:
            return cls(scenario=name, state=FAILED, rule=26, why="it was not finished")
        if broken is not None:
            entry = case.record.entries[case.broken_at - 1] if case.broken_at else {}
            return cls(
                scenario=name,
                state=FAILED,
                rule=broken.rule,
                why=broken.why,
                frame=case.broken_at or None,
                content={key: value for key, value in entry.items() if key != "bytes"} or None,
            )
        if case.unseen:
            return cls(scenario=name, state=NOT_SHOWN, why=", ".join(case.unseen))
        return cls(scenario=name, state=PASSED)

    @property
    def documented(self) -> str:
        """Where the rule stands."""
        return "" if self.rule is None else f"docs/protocol.md, rule {self.rule}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"documented": self.documented}

    def lines(self) -> list[str]:
        """For people."""
        said = f"{self.state:9}  {self.scenario:17}"
        if self.state != FAILED:
            return [f"{said}{self.why}".rstrip()]
        lines = [f"{said}{self.why}", f"{'':11}{self.documented}"]
        if self.frame is not None:
            lines.append(f"{'':11}frame {self.frame}: {json.dumps(self.content)}")
        return lines
