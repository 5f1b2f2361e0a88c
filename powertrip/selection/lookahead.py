"""The best k sites by the power that they are going to have, not by what they have now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from powertrip.selection.errors import NoUsableSite
from powertrip.selection.forecast import MOST_SEASONS, Forecast, forecast_power
from powertrip.selection.outlook import Outlook, look
from powertrip.selection.types import Decision, Observation
from powertrip.settings import Settings

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings

_LEAST_FRACTION = 1e-3
"""Smallest forecast speed, as a fraction of that now: a site that has power has not lost it yet."""

SAMPLES_A_SEASON = 48
"""Samples of the past power for every season: one every half hour of a day."""

HISTORY_ROWS = (MOST_SEASONS + 1) * SAMPLES_A_SEASON
"""Samples of the past power in all, which every decision of the event log holds."""


class LookaheadSettings(Settings):
    """What the forecast assumes.

    It looks back on 384 samples of power, 48 a season, those of the traces before the run among
    them. The event log holds them with every decision of this policy.
    """

    season_s: float = Field(default=86400.0, gt=0)
    """After how many seconds of the run power repeats itself: a day, divided by the time scale."""


@dataclass(frozen=True)
class Lookahead:
    """The first k of the ranking by the power forecast for the coming interval; seats are kept.

    Sites must have power now as well. Where the history tells nothing (too short, or no better than
    chance), the forecast is the power now, and this is `static-k`.
    """

    settings: SelectionSettings
    name: ClassVar[str] = "lookahead"

    def decide(self, observation: Observation) -> Decision:
        """Choose the members until the next decision.

        Raises
        ------
        NoUsableSite
            If no site has both power and a link.
        """
        o = observation
        now = look(o, self.settings, keep_seats=True)
        k = min(self.settings.k, now.order.size)
        interval_s = o.interval_rounds * self._round_s(o, now, k)
        outlook, words = now, "power as it is: no history"
        if o.history_step_s > 0 and len(o.power_history):
            forecast = self._forecast(o, interval_s)
            outlook = self._outlook(o, now, forecast)
            words = _words(o, now, forecast, interval_s)
        k = min(k, outlook.order.size)
        reason = f"the best {k} of {now.order.size} usable sites by {words}"
        avoided = np.setdiff1d(now.order[:k], outlook.order[:k]).tolist()
        if avoided:
            reason += f"; avoids {o.listed(avoided)}"
        table = outlook.table(np.array([k]), current=k)
        return outlook.decision(self.name, k, table, reason)

    def _round_s(self, o: Observation, now: Outlook, k: int) -> float:
        if o.previous is not None:
            return o.previous.predicted_round_s
        return float(now.terms.own_s[now.order[:k]].max())

    def _forecast(self, o: Observation, interval_s: float) -> Forecast:
        steps = min(max(math.ceil(interval_s / o.history_step_s), 1), len(o.power_history))
        season_steps = round(self.settings.lookahead.season_s / o.history_step_s)
        return forecast_power(o.power_history, o.power_w, steps, season_steps)

    def _outlook(self, o: Observation, now: Outlook, forecast: Forecast) -> Outlook:
        """Rank by the forecast; by the power now if nobody could finish a round with it."""
        drawn_w = np.where(o.used_power_w > 0, o.used_power_w, o.power_w)
        fitted = forecast.fitted & (drawn_w > 0) & (o.throughput > 0)
        power_w = np.maximum(forecast.power_w, _LEAST_FRACTION * drawn_w)
        # A site may have more power than it can use: it stays at full speed until that is gone.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            speed = np.minimum(o.throughput * (power_w / drawn_w), o.full_speed)
        ahead = o.replace(
            power_w=np.where(fitted, power_w, o.power_w),
            throughput=np.where(fitted, speed, o.throughput),
        )
        try:
            outlook = look(ahead, self.settings, among=now.terms.usable, keep_seats=True)
        except NoUsableSite:
            return now
        return outlook if outlook.order.size else now


def _words(o: Observation, now: Outlook, forecast: Forecast, interval_s: float) -> str:
    fitted = int(forecast.fitted[now.order].sum())
    if not fitted:
        history_s = len(o.power_history) * o.history_step_s
        return f"power as it is: {history_s:.6g} s of history tell no more"
    kind = "seasonal and autoregressive" if forecast.seasonal else "autoregressive"
    return f"the power of the next {interval_s:.6g} s ({kind} forecast at {fitted} of them)"
