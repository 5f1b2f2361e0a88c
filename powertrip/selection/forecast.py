"""A forecast of every site's power from its history: seasonal and autoregressive, fitted online.

The change of power from now to its mean over the coming steps is explained by two things:

- what followed at the same time of earlier seasons (days), in the mean over these: seasonal;
- how far the site is from its own mean: autoregressive, as power tends back to it.

Their two coefficients are fitted by least squares for every site. Both are shrunk towards 0 where
they explain little more of the past than chance would, so that what cannot be foretold is left as
it is ("persistence": power stays). All sites are fitted at once, in time linear in the history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray

MOST_SEASONS = 7
"""Earlier seasons that are looked at."""

_LEAST_TARGETS = 8
"""Fewer disjoint intervals of the past than this teach nothing."""

_CHANCE = 6.0
"""What F must exceed for a fit to count. A random walk, whose distance from its own past mean seems
to tell something, rarely exceeds it."""


@dataclass(frozen=True)
class Forecast:
    """Mean power over the coming steps.

    Parameters
    ----------
    power_w
        Watts, not negative, shape [n].
    fitted
        Where the forecast differs from persistence, shape [n].
    seasonal
        Whether the history is long enough for a season to be seen in it.
    """

    power_w: FloatArray
    fitted: BoolArray
    seasonal: bool


def forecast_power(
    history: FloatArray, now_w: FloatArray, steps: int, season_steps: int
) -> Forecast:
    """Foretell the mean power over the next steps.

    Parameters
    ----------
    history
        Watts at each site, oldest first, at equal steps, shape [h, n]; the last row is one step
        old at most.
    now_w
        Watts now, shape [n].
    steps
        How many steps ahead the mean goes over, at least 1.
    season_steps
        Length of a season in steps.

    Returns
    -------
    Persistence (`now_w`) where the history is shorter than eight times `steps`; without seasons
    where it is not longer than one season by as much.
    """
    stay = Forecast(now_w, np.zeros(now_w.size, dtype=np.bool_), False)
    if len(history) < (_LEAST_TARGETS + 1) * steps:
        return stay
    y = np.asarray(history)
    # Row t: mean of the `steps` rows after t, less row t.
    sums = np.concatenate([np.zeros((1, y.shape[1])), np.cumsum(y, axis=0)])
    change = (sums[steps + 1 :] - sums[1:-steps]) / steps - y[:-steps]
    ages = np.arange(1, len(y) + 1)[:, np.newaxis]
    features = [sums[1:] / ages - y]
    seasonal = len(y) >= season_steps + (_LEAST_TARGETS + 1) * steps and season_steps > steps
    first = season_steps if seasonal else 0
    if seasonal:
        features.append(_seasonal_change(change, len(y), season_steps))
    x = np.stack([feature[first:] for feature in features], axis=-1)
    known = len(change) - first
    weights, shrink = _fit(x[:known], change[first:], known / steps)
    power_w = np.maximum(now_w + shrink * np.einsum("nf,nf->n", x[-1], weights), 0.0)
    return Forecast(power_w, shrink > 0, seasonal)


def _seasonal_change(change: FloatArray, rows: int, season_steps: int) -> FloatArray:
    """Return what followed at the same time of earlier seasons, in the mean, shape [rows, n]."""
    total, count = np.zeros((rows, change.shape[1])), np.zeros((rows, 1))
    for start in range(season_steps, min(rows, MOST_SEASONS * season_steps + 1), season_steps):
        total[start:] += change[: rows - start]
        count[start:] += 1
    return total / np.maximum(count, 1)


def _fit(x: FloatArray, target: FloatArray, independent: float) -> tuple[FloatArray, FloatArray]:
    """Fit by least squares, site by site.

    Parameters
    ----------
    x, target
        What explains, shape [t, n, f], and what is to be explained, shape [t, n].
    independent
        How many of the t rows are worth: neighbours have most of their future in common.

    Returns
    -------
    Coefficients, shape [n, f], and the share of them to trust, shape [n].
    """
    count = x.shape[-1]
    gram = np.einsum("tnf,tng->nfg", x, x)
    size = np.trace(gram, axis1=1, axis2=2)
    gram += np.where(size > 0, 1e-9 * size, 1.0)[:, np.newaxis, np.newaxis] * np.eye(count)
    moment = np.einsum("tnf,tn->nf", x, target)
    weights = np.linalg.solve(gram, moment[..., np.newaxis])[..., 0]
    explained = np.einsum("nf,nf->n", weights, moment)
    left = np.maximum(np.einsum("tn,tn->n", target, target) - explained, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse_f = left / (independent - count) / (explained / count)
    shrink = np.where(explained > 0, np.maximum(1 - _CHANCE * inverse_f, 0.0), 0.0)
    return weights, shrink
