"""Settings of the exchange between sites."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from powertrip.settings import Settings


class ExchangeSettings(Settings):
    """How the members of a generation average their updates."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collectives library: nccl needs a GPU per process; auto takes it where it can, else gloo."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds after which a collective or the building of a group is given up."""
