from __future__ import annotations

import math


class Steady:
    """A site of so many samples a second, `later` times that from `change_s`, 0 from `dark_s`."""

    def __init__(self, speed=100.0, *, change_s=math.inf, later=0.5, dark_s=math.inf) -> None:
        self.speed, self.change_s, self.later, self.dark_s = speed, change_s, later, dark_s

    def _done(self, until_s: float) -> float:
        until_s = min(until_s, self.dark_s)
        before_s = min(until_s, self.change_s)
        return self.speed * (before_s + (until_s - before_s) * self.later)

    def samples_done(self, site: int, start_s: float, duration_s: float) -> float:
        assert site == 3
        return self._done(start_s + duration_s) - self._done(start_s)

    def seconds_for(self, site: int, start_s: float, samples: float) -> float:
        assert site == 3
        goal = self._done(start_s) + samples
        before = min(goal, self.speed * self.change_s)
        end_s = before / self.speed + (goal - before) / (self.speed * self.later)
        return end_s - start_s if end_s <= self.dark_s else math.inf
