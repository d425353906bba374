"""What a client is put through: a task for it, and what happens to its streams meanwhile."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace

from draftwire.errors import (
    DraftwireError,
    Draining,
    LinkLost,
    ModelChanged,
    ProtocolVersion,
    ServerFull,
    Superseded,
    VocabularyMismatch,
)
from draftwire.types import SamplingParams

NEVER = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of one stream; by default it is served to its end.

    `refusal` answers its open. Else it breaks by `error` when its client has been told `after`
    tokens of the output; if it `loses`, without the verdict that reaches them. If it `forges`, a
    verdict out of place comes then, and the client has to leave. After it the verifier may have
    restarted, or another be in its place.
    """

    refusal: type[DraftwireError] | None = None
    after: int = NEVER
    error: type[DraftwireError] = LinkLost
    loses: bool = False
    forges: bool = False
    restarts: bool = False
    other_target: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """A task, what happens on the way, and what must have been seen for it to show anything.

    The client drafts `chunk` tokens a frame with `credit` beyond them, up to `window` at once;
    every `wrong_every`-th of the drafts it is given is wrong. A verdict is `hold` frames late: it
    waits for so many drafts to come after those that it judged, or until none has for `hold_s`.
    `ends` is the error that the client must report, if that is how it ends.
    """

    name: str
    about: str
    shows: tuple[str, ...] = ()
    _: KW_ONLY
    max_tokens: int = 24
    window: int = 4
    chunk: int = 4
    credit: int = 1
    pipelined: bool = False
    wrong_every: int = 0
    drafts: bool = True
    hold: int = 0
    hold_s: float = 0.2
    fates: tuple[Fate, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    to_the_end: bool = False
    stop_string: bool = False
    then: int = 0
    cancel_after: int = 0
    unknown_fields: bool = False
    other_vocabulary: bool = False
    ends: type[DraftwireError] | None = None


def _flowing(scenario: Scenario, hold: int = 1) -> Scenario:
    """The same with drafts of two tokens that flow, and verdicts that come so many frames late."""
    return replace(scenario, window=8, chunk=2, pipelined=True, hold=hold)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("round", "drafts that all hold, a bonus token after each", ("accepted",)),
    Scenario("rejection", "every third draft is wrong", ("accepted", "rejected"), wrong_every=3),
    Scenario(
        "sampled",
        "the same with noise: temperature and seed",
        ("accepted",),
        wrong_every=5,
        sampling=SamplingParams(temperature=0.8, seed=7),
    ),
    Scenario(
        "cloud-alone",
        "no drafts: credit alone keeps it going",
        ("credit again",),
        drafts=False,
        window=0,
        chunk=0,
        credit=6,
    ),
    _flowing(Scenario("pipelined", "drafts flow while verdicts are out", ("in flight",))),
    _flowing(
        Scenario(
            "dead-drafts",
            "a rejection while later drafts are in flight",
            ("dead draft", "rejected"),
            wrong_every=4,
        )
    ),
    _flowing(
        Scenario(
            "bonus", "the bonus token contradicts a draft in flight", ("void draft",), wrong_every=5
        )
    ),
    _flowing(
        Scenario(
            "run-on",
            "the cloud runs on by itself, and drafts come late",
            ("overlap",),
            credit=4,
            wrong_every=5,
        )
    ),
    Scenario(
        "partial",
        "more drafts than a pass takes: several verdicts for them",
        ("partial",),
        window=14,
        chunk=14,
        wrong_every=11,
    ),
    Scenario(
        "limits",
        "the task asks for more than `opened` allows",
        ("accepted",),
        window=40,
        chunk=40,
        credit=40,
        max_tokens=48,
    ),
    Scenario(
        "slow", "every verdict takes a second", ("accepted",), max_tokens=8, hold=NEVER, hold_s=1.0
    ),
    Scenario(
        "end-token",
        "the text ends with an end token that was drafted",
        ("accepted",),
        to_the_end=True,
        window=6,
        chunk=6,
    ),
    Scenario("stop-string", "a stop string takes tokens back", ("taken back",), stop_string=True),
    _flowing(
        Scenario(
            "cut",
            "a cut in mid-text loses a verdict, which is replayed",
            ("resumed", "replayed"),
            wrong_every=5,
            fates=(Fate(after=8, loses=True), Fate(after=16, loses=True)),
        )
    ),
    Scenario(
        "finish-lost",
        "the last verdict comes, `finished` is lost",
        ("finished at open",),
        fates=(Fate(after=24),),
    ),
    Scenario(
        "restarted",
        "the verifier has forgotten the session",
        ("resumed",),
        wrong_every=5,
        fates=(Fate(after=10, restarts=True),),
    ),
    Scenario(
        "busy",
        "a cut, and then there is no room twice",
        ("resumed",),
        fates=(Fate(after=10), Fate(refusal=ServerFull), Fate(refusal=ServerFull)),
    ),
    Scenario(
        "draining",
        "the verifier shuts down in mid-text",
        ("resumed",),
        fates=(Fate(after=10, error=Draining, restarts=True),),
    ),
    Scenario(
        "false-verdict",
        "a verdict that is not about what stands there",
        ("resumed",),
        fates=(Fate(after=10, forges=True),),
    ),
    _flowing(
        Scenario(
            "cancel",
            "verdicts that come after a cancel",
            ("verdict after cancel",),
            cancel_after=8,
            max_tokens=100,
        ),
        hold=2,
    ),
    Scenario(
        "two-turns", "a second turn of the same session", ("second turn",), then=5, wrong_every=5
    ),
    Scenario("unknown-fields", "fields of a later version", ("accepted",), unknown_fields=True),
    Scenario(
        "superseded",
        "someone else has opened the session",
        fates=(Fate(after=8, error=Superseded),),
        ends=Superseded,
    ),
    Scenario(
        "other-target",
        "another target after a cut",
        fates=(Fate(after=8, other_target=True),),
        ends=ModelChanged,
    ),
    Scenario(
        "other-vocabulary",
        "draft model and target do not fit",
        other_vocabulary=True,
        ends=VocabularyMismatch,
    ),
    Scenario(
        "other-version",
        "the verifier does not speak this version",
        fates=(Fate(refusal=ProtocolVersion),),
        ends=ProtocolVersion,
    ),
)
"""All of them, the simplest first."""
