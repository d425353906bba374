"""How far to draft where drafts are looked up, which costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge_client.drafters.lookup import LookupDrafter
from edge_client.plan import Controller, Plan, Round, View

_EXPECTED = {
    chunk: Plan(window=4 * chunk, chunk=chunk, credit=1, pipelined=True, asks_first=False)
    for chunk in (4, 8, 16, 32)
}
"""For a prediction, by chunk: at most as many drafts as a pass judges, and the next under way.

The first of them are judged in the pass that reads the prompt.
"""

_FOUND = Plan(window=16, chunk=8, credit=1, pipelined=True)
"""For what stood in the text before."""


class LookupController:
    """Sends plenty of what is looked up; how far the draft model drafts is `inner`'s choice.

    Where that is not at all, drafts are still looked up, one ahead, to see where they hold again;
    the model is asked only while the cloud can't be reached. No draft of the model's is sent
    against that choice because what was drawn stands somewhere: in `rejection` mode it would bias
    the output.
    """

    def __init__(self, inner: Controller, drafter: LookupDrafter) -> None:
        self._inner = inner
        self._drafter = drafter
        self._drawn = False  # whether the model drafted any of what is in hand

    @property
    def patience_s(self) -> float:
        """The inner controller's."""
        return self._inner.patience_s

    def plan(self, view: View) -> Plan:
        """By where the last draft came from."""
        looked_up, drafts = self._drafter.predicting or self._drafter.found, len(view.confidences)
        self._drawn = bool(drafts) and (self._drawn or not looked_up)
        plan = self._inner.plan(view)
        self._drafter.asks |= view.alone
        if self._drafter.ending and drafts and not self._drawn:
            if view.sent < drafts:  # a prediction's end waits for no more
                return Plan.flowing(window=drafts, chunk=drafts)
            looked_up = False
        if looked_up and (plan.chunk or not self._drawn):
            return self._following(drafts) if self._drafter.predicting else _FOUND
        self._drafter.asks = plan.window > 0 or view.alone
        return plan if plan.window else replace(plan, window=1)

    def _following(self, unjudged: int) -> Plan:
        """Soon after a difference the place may be the wrong one, and drafts cost the verifier."""
        agreed = self._drafter.agreed - unjudged
        return next(plan for chunk, plan in _EXPECTED.items() if chunk >= min(2 * agreed, 32))

    def drafted(self, seconds: float, fed: int) -> None:
        """Tell the other one what its own drafts took; looking up is no measure of them."""
        if not (self._drafter.predicting or self._drafter.found):
            self._inner.drafted(seconds, fed)

    def judged(self, outcome: Round) -> None:
        """Pass a verdict on."""
        self._inner.judged(outcome)

    def explain(self) -> Mapping[str, Any]:
        """The inner controller's."""
        return self._inner.explain()
