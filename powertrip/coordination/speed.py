"""What a site does in a stretch of time, at the speed that its power gives it."""

from __future__ import annotations

import math
from typing import Protocol


class SiteSpeed(Protocol):
    """What must be known of the world for that."""

    def samples_done(self, site: int, start_s: float, duration_s: float) -> float:
        """Samples that a site trains on in a stretch of time."""

    def seconds_for(self, site: int, start_s: float, samples: float) -> float:
        """Seconds that a site needs for so many samples; infinite if it never finishes them."""


def steps_by_deadline(
    world: SiteSpeed, site: int, start_s: float, deadline_s: float, batch_size: int
) -> int:
    """Whole steps that a site does by a deadline at its modelled speed; at least one."""
    samples = world.samples_done(site, start_s, max(deadline_s, 0.0))
    return max(1, math.floor(samples / batch_size * (1 + 1e-9)))
