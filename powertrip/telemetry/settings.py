"""Settings of the metrics endpoint and the console."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from powertrip.settings import Settings


class MetricsSettings(Settings):
    """The Prometheus endpoint of the coordinator."""

    enabled: bool = True
    """Serve metrics over HTTP while the run lasts."""

    address: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 lets other machines scrape."""

    port: int = Field(default=9464, ge=0, le=65535)
    """TCP port; when it is taken, and with 0, a free one is used and printed."""


class TelemetrySettings(Settings):
    """What a run shows while it lasts; the event log is always written."""

    metrics: MetricsSettings = MetricsSettings()
    """The Prometheus endpoint."""

    console: Literal["auto", "live", "plain", "none"] = "auto"
    """How a run is shown: live (a table that updates), plain (lines), none (warnings only), or auto
    (live on a terminal, plain in pipes and in CI)."""

    observations: Literal["auto", "always", "never"] = "auto"
    """Whether the event log holds all that the policy saw at each decision, from which it can be
    replayed, some 250 bytes a site; auto does up to 1,000 sites."""
