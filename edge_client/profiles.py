"""Limits of kinds of devices, to plan with where the device itself is not at hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_client.choice import Watts


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a draft model may take of a device: threads, memory (bytes), context (tokens), watts.

    The figures are round ones to plan with, not measurements: measure yours.
    """

    about: str
    threads: int
    memory_bytes: int
    context: int
    watts: Watts = field(default_factory=Watts)


PROFILES = {
    "raspberry-pi-5": Profile(
        about="four cores, half of 8 GB",
        threads=4,
        memory_bytes=4 * 10**9,
        context=4096,
        watts=Watts(drafting=5.0, waiting=3.0),
    ),
    "iphone": Profile(
        about="an iPhone-class phone: two fast cores, 3 GB for an app",
        threads=2,
        memory_bytes=3 * 10**9,
        context=2048,
        watts=Watts(drafting=4.0, waiting=1.0),
    ),
}
