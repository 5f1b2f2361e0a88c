"""The network under the links of a job on several machines."""

from __future__ import annotations

import ipaddress

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Underlay(BaseModel):
    """How this machine's links reach those of the job's other machines: by VXLAN."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    local: str
    """This machine's IPv4 address."""
    peers: tuple[str, ...] = Field(min_length=1)
    """The other machines' addresses."""
    vni: int = Field(ge=1, lt=1 << 24)
    """VXLAN network identifier: the same on all machines of a job, another for every job."""
    port: int = Field(4789, ge=1, lt=1 << 16)
    """UDP port of the tunnels."""

    @field_validator("local", "peers")
    @classmethod
    def _addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for text in (value,) if isinstance(value, str) else value:
            try:
                address = ipaddress.IPv4Address(text)
            except ValueError as error:
                raise ValueError(f"{text!r} is no IPv4 address; write one like 10.0.0.5") from error
            if address.is_unspecified or address.is_multicast:
                raise ValueError(f"{text} is no address of a machine")
            if address.is_loopback:
                raise ValueError(f"{text} is no address by which other machines reach this one")
        return value

    @model_validator(mode="after")
    def _different(self) -> Underlay:
        everybody = (self.local, *self.peers)
        for address in everybody:
            if everybody.count(address) > 1:
                raise ValueError(f"{address} is named twice; each machine has an address")
        return self
