"""From a power budget to the fraction of full speed, and to the power that is really drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from powertrip.world.files import PACKAGED, read_table
from powertrip.world.steps import Floats

PowerMode = Literal["gpus", "caps"]

# Budgets come out of products; one that misses a whole GPU or the lowest cap by this much has it.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class CapCurve:
    """Relative throughput of a GPU against its relative power cap, as measured.

    Parameters
    ----------
    caps
        [j] caps as fractions of the rated power, increasing, the last 1.
    speeds
        [j] throughputs as fractions of that without a cap, the last 1.
    """

    caps: Floats
    speeds: Floats

    def at(self, cap: npt.ArrayLike) -> Floats:
        """Return the speed at caps (fractions of the rated power, any shape).

        Linear between the measured caps, 1 above the rated power, and 0 below the lowest measured
        cap, where the GPU is off.
        """
        cap = np.asarray(cap, dtype=np.float64)
        on = cap >= self.caps[0] * (1 - _ROUNDING)
        return np.where(on, np.interp(cap, self.caps, self.speeds), 0.0)

    @cached_property
    def _best_above(self) -> Floats:
        """[j+1] the best speed for each unit of power among the caps from the j-th on."""
        ratios = np.append(self.speeds / self.caps, 0.0)
        return np.maximum.accumulate(ratios[::-1])[::-1]

    def best_fraction(self, share: Floats) -> Floats:
        """Return the best speed of GPUs of which any part can be off.

        Where the budget is the fraction x of a site's rated power, running the part y of its GPUs
        at the cap x/y gives `y phi(x/y) = x phi(c)/c` with `c = x/y >= x`. On a linear piece of
        phi, phi(c)/c is monotone: the best c is x itself or one of the measured caps above it.

        Parameters
        ----------
        share
            [...] budgets as fractions of the site's rated power.
        """
        x = np.minimum(share, 1.0)
        above = self._best_above[np.searchsorted(self.caps, x, side="left")]
        return np.maximum(self.at(x), x * above)

    def best_whole(self, budget: Floats, gpus: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return the best speed with a whole number m of GPUs on, and that number.

        `m phi(b/m)` is linear in m while b/m stays between two measured caps, so the best m is all
        GPUs or stands next to b/c for a measured cap c.

        Parameters
        ----------
        budget
            [...] budgets in rated powers of one GPU (b).
        gpus
            [...] numbers of GPUs.

        Returns
        -------
        tuple
            [...] speeds, in GPUs at full power, and [...] numbers of GPUs that are on.
        """
        gpus = np.asarray(gpus, dtype=np.float64)
        budget, gpus = np.broadcast_arrays(np.asarray(budget, dtype=np.float64), gpus)
        edges = budget[..., None] / self.caps
        candidates = np.concatenate(
            (np.floor(edges + _ROUNDING), np.ceil(edges), gpus[..., None]), axis=-1
        )
        candidates = np.minimum(candidates, gpus[..., None])
        caps = budget[..., None] / np.maximum(candidates, 1.0)
        speeds = candidates * self.at(caps)
        best = np.argmax(speeds, axis=-1)[..., None]
        speed = np.take_along_axis(speeds, best, axis=-1)[..., 0]
        count = np.take_along_axis(candidates, best, axis=-1)[..., 0]
        return speed, np.where(speed > 0, count, 0.0)


@lru_cache(maxsize=1)
def cap_curves() -> dict[str, CapCurve]:
    """Return the packaged curves by the name of the GPU (see data/README.md)."""
    table = read_table(
        PACKAGED / "power_curves.csv", ("gpu", "relative_cap", "relative_throughput")
    )
    names = np.array([fields[table.column("gpu")] for _, fields in table.rows])
    caps = np.array([*table.numbers("relative_cap")])
    speeds = np.array([*table.numbers("relative_throughput")])
    return {
        str(name): CapCurve(caps[names == name], speeds[names == name]) for name in np.unique(names)
    }


def spend(
    budget_w: npt.ArrayLike,
    gpus: npt.ArrayLike,
    rated_w: npt.ArrayLike,
    *,
    mode: PowerMode,
    whole_gpus: bool,
    curve: CapCurve,
) -> tuple[Floats, Floats]:
    """Spend a budget as well as the mode allows.

    `gpus`: `m = min(G, P/p)` GPUs at full power; `caps`: the best over m of `m phi(P/(m p))`.

    Parameters
    ----------
    budget_w, gpus, rated_w
        [...] budgets of sites in watts, their numbers of GPUs, and the rated watts of one GPU.
    mode, whole_gpus
        The two modes; whether only whole GPUs can be on.
    curve
        The curve of the GPUs, for mode `caps`.

    Returns
    -------
    tuple
        [...] fractions of full speed and [...] watts drawn.
    """
    gpus = np.asarray(gpus, dtype=np.float64)
    rated_w = np.asarray(rated_w, dtype=np.float64)
    budget = np.asarray(budget_w, dtype=np.float64) / rated_w
    if mode == "gpus":
        on = np.minimum(gpus, np.floor(budget + _ROUNDING) if whole_gpus else budget)
        return on / gpus, on * rated_w
    if whole_gpus:
        speed, on = curve.best_whole(budget, gpus)
        return speed / gpus, np.minimum(on, budget) * rated_w
    return curve.best_fraction(budget / gpus), np.minimum(gpus, budget) * rated_w


class PowerModel:
    """How n sites spend their budgets.

    Parameters
    ----------
    gpus, rated_w
        [n] numbers of GPUs, and rated watts of one GPU.
    kinds
        n names of GPUs that have a curve.
    mode, whole_gpus
        As in `spend`.
    """

    def __init__(
        self,
        gpus: Floats,
        rated_w: Floats,
        kinds: Sequence[str],
        *,
        mode: PowerMode,
        whole_gpus: bool,
    ) -> None:
        self._gpus = gpus
        self._rated_w = rated_w
        self._kinds = np.array(kinds)
        self._mode: PowerMode = mode
        self._whole_gpus = whole_gpus

    def spend(self, budget_w: Floats) -> tuple[Floats, Floats]:
        """Return the fractions of full speed [n] and the watts drawn [n] for budgets [n]."""
        if self._mode == "gpus":
            return self._spend(budget_w, slice(None), str(self._kinds[0]))
        fraction, used_w = np.empty(budget_w.size), np.empty(budget_w.size)
        for kind in np.unique(self._kinds):
            of_kind = np.flatnonzero(self._kinds == kind)
            fraction[of_kind], used_w[of_kind] = self._spend(budget_w[of_kind], of_kind, str(kind))
        return fraction, used_w

    def spend_at(self, site: int, budget_w: Floats) -> tuple[Floats, Floats]:
        """Return fractions [k] and watts [k] for budgets [k] of one site."""
        return self._spend(budget_w, site, str(self._kinds[site]))

    def _spend(
        self, budget_w: Floats, sites: int | slice | npt.NDArray[np.intp], kind: str
    ) -> tuple[Floats, Floats]:
        return spend(
            budget_w,
            self._gpus[sites],
            self._rated_w[sites],
            mode=self._mode,
            whole_gpus=self._whole_gpus,
            curve=cap_curves()[kind],
        )
