"""What each process of a run is given, and what each builds from it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from powertrip.config import Config, default_path, load_config
from powertrip.coordination.links import REAL_LINKS, Links
from powertrip.errors import ConfigError
from powertrip.world.world import World, build_world

DATA_VARIABLE = "POWERTRIP_DATA"


def data_folder() -> Path | None:
    """The folder of data sets and traces that the environment names, if any."""
    value = os.environ.get(DATA_VARIABLE)
    return Path(value) if value else None


@dataclass(frozen=True)
class Setup:
    """The resolved scenario as it is handed to every process.

    Attributes
    ----------
    config
        The resolved settings.
    base_dir
        Folder of the configuration file; relative paths in it start there.
    json_summary
        End standard output with the summary as one line of JSON.
    links
        How the sites of this machine are joined.
    resume
        Folder of the run that goes on from its last checkpoint; None for a run that begins.
    """

    config: Config
    base_dir: Path
    json_summary: bool = False
    links: Links = REAL_LINKS
    resume: str | None = None

    @classmethod
    def resolve(
        cls, path: Path | None, overrides: Sequence[str], *, json_summary: bool = False
    ) -> Self:
        """Read a scenario, as `load_config` takes it; None means the packaged one.

        Raises
        ------
        ConfigError
            With every problem at once.
        """
        path = path or default_path()
        return cls(load_config(path, overrides), path.resolve().parent, json_summary)

    def check_real(self) -> None:
        """See that nothing is set that only simulations know.

        Raises
        ------
        ConfigError
            Something is.
        """
        exchange, problems = self.config.exchange, []
        so_far = "for `powertrip simulate` so far; a real run takes"
        if exchange.overlap:
            problems.append(f"exchange.overlap: true is {so_far} false")
        if exchange.codec != "none":
            problems.append(f"exchange.codec: {exchange.codec} is {so_far} none")
        if problems:
            raise ConfigError(problems, "the scenario")

    def encode(self) -> bytes:
        """As JSON, for a child process's standard input."""
        return json.dumps(
            {
                "config": self.config.model_dump(mode="json"),
                "base_dir": str(self.base_dir),
                "json_summary": self.json_summary,
                "links": asdict(self.links),
                "resume": self.resume,
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`."""
        fields = json.loads(data)
        return cls(
            config=Config.model_validate(fields["config"]),
            base_dir=Path(fields["base_dir"]),
            json_summary=fields["json_summary"],
            links=Links(**fields["links"]),
            resume=fields["resume"],
        )

    def build_world(self) -> World:
        """The facts of the scenario: sites, power, network."""
        config = self.config
        return build_world(
            config.sites,
            config.network,
            config.world,
            seed=config.seed,
            data_dir=data_folder(),
            base_dir=self.base_dir,
        )
