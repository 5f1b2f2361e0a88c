"""Settings of the exchange between sites."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from powertrip.exchange.codec import Codec
from powertrip.settings import Settings


class ProbeSettings(Settings):
    """The measuring of the links, by few datagrams between the sites' processes."""

    enabled: bool = True
    """Whether the sites measure the links among them; the decisions then use what is measured, with
    the network's model until then."""
    interval_s: float = Field(default=60.0, gt=0)
    """Seconds between two measurements of all links."""
    limit_s: float = Field(default=10.0, gt=0)
    """Seconds after which a link that has not answered counts as not measured."""


class ExchangeSettings(Settings):
    """How the members of a generation average their updates."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collectives library: nccl needs a GPU per process; auto takes it where it can, else gloo."""
    algorithm: Literal["auto", "ring", "mesh"] = "auto"
    """How updates are added up: ring (the library's all-reduce, 2(k-1) steps among k sites), mesh
    (two steps, all pairs at once; needs gloo), or auto (mesh with gloo, else ring)."""
    overlap: bool = False
    """Whether an exchange goes on beside the training of the next round: its result counts a round
    later. For `powertrip simulate`."""
    codec: Codec = "none"
    """How updates travel: none (float32), or int8 with a scale for 1,024 numbers, a quarter of
    the bytes. For `powertrip simulate`."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds after which a collective or the building of a group is given up."""
    probe: ProbeSettings = ProbeSettings()
    """How the sites measure the links among them."""
