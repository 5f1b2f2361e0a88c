"""The base of every settings class."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable settings that refuse unknown keys and numbers that are not finite.

    Docstrings under the fields become their descriptions, and the comments that
    `powertrip config` prints.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
