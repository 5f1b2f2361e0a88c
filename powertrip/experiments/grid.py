"""The file of an experiment, and the grid of cells that it stands for."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import AfterValidator, Field, ValidationError, field_validator

from powertrip.config import default_path, parse_yaml, problems_in, read_yaml
from powertrip.coordination.setup import Setup
from powertrip.errors import ConfigError
from powertrip.experiments.cell import ROUND_COLUMNS, SUMMARY_COLUMNS
from powertrip.experiments.figures import FigureSettings
from powertrip.experiments.fingerprint import cell_key
from powertrip.experiments.table import Value
from powertrip.settings import Settings

Overrides: TypeAlias = dict[str, Any]
Axis: TypeAlias = list[Any] | dict[str | int | float, Overrides | None]

EACH = "each"
"""Key of a label's settings below which settings with several values stand."""

TAKEN = {"seed", *SUMMARY_COLUMNS, *ROUND_COLUMNS} - {"policy", "sites"}
"""Names that an axis cannot have. Where one is called policy or sites, its labels stand in the
place of the summary's column."""

_QUIET = (
    "telemetry.console=none",
    "telemetry.metrics.enabled=false",
    "simulation.workers=0",
)
"""Cells fill the cores themselves, and say nothing while they run."""


MOST_CELLS = 1_000_000
"""Cells of the largest experiment."""


def _some_seeds(seeds: int | tuple[int, ...]) -> int | tuple[int, ...]:
    if isinstance(seeds, int) and seeds > MOST_CELLS:
        raise ValueError(f"that are more than {MOST_CELLS} cells")
    listed = range(seeds) if isinstance(seeds, int) else seeds
    if not listed or len(set(listed)) < len(listed) or min(listed) < 0:
        raise ValueError("write how many seeds, at least 1, or a list of different ones from 0")
    return seeds


Seeds: TypeAlias = Annotated[int | tuple[int, ...], AfterValidator(_some_seeds)]


class QuickSettings(Settings):
    """What a quick run of an experiment replaces, setting by setting."""

    scenario: str | None = None
    """Another scenario."""

    seeds: Seeds | None = None
    """Other seeds."""

    settings: Overrides = Field(default_factory=dict)
    """Settings on top of those for all cells."""

    axes: dict[str, Axis | None] = Field(default_factory=dict)
    """Labels' settings on top of the axes' own; null leaves a label, or an axis, out."""


class ExperimentSettings(Settings):
    """An experiment: one scenario under every combination of its axes and seeds."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the experiment: letters, digits, dots, dashes and underscores; its folder's name."""

    title: str = ""
    """What it shows, in words: the title of its figures."""

    scenario: str | None = None
    """The scenario (YAML), relative to this file; null for the packaged one."""

    settings: Overrides = Field(default_factory=dict)
    """Settings of all cells that replace the scenario's, such as goal.accuracy: 0.8."""

    axes: dict[str, Axis] = Field(default_factory=dict)
    """What is varied; the cells are all combinations. An axis is either labels with the settings
    that each stands for, or, named as a setting is, a list of its values."""

    seeds: Seeds = 1
    """Seeds of which each combination is run with every one: how many from 0, or which."""

    figures: tuple[FigureSettings, ...] = ()
    """What is drawn."""

    quick: QuickSettings = QuickSettings()
    """What --quick replaces."""

    @field_validator("axes")
    @classmethod
    def _not_empty(cls, axes: dict[str, Axis]) -> dict[str, Axis]:
        for name, axis in axes.items():
            if not axis:
                raise ValueError(f"{name} is empty; write labels with settings, or a list")
        return axes

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def made_quick(self) -> ExperimentSettings:
        """This experiment with what its `quick` replaces.

        Raises
        ------
        ConfigError
            It replaces an axis or a label that there is not.
        """
        quick = self.quick
        problems: list[str] = []
        axes = _patched_axes(self.axes, quick.axes, problems)
        if problems:
            raise ConfigError(problems, "the experiment's `quick`")
        return self.model_copy(
            update={
                "scenario": self.scenario if quick.scenario is None else quick.scenario,
                "seeds": self.seeds if quick.seeds is None else quick.seeds,
                "settings": self.settings | quick.settings,
                "axes": axes,
            }
        )


def _patched_axes(
    axes: Mapping[str, Axis], patches: Mapping[str, Axis | None], problems: list[str]
) -> dict[str, Axis]:
    patched = dict(axes)
    for name, patch in patches.items():
        axis = axes.get(name)
        if axis is None:
            problems.append(f"quick.axes.{name}: there is no such axis; write one of {list(axes)}")
        elif patch is None:
            del patched[name]
        elif isinstance(axis, list) or isinstance(patch, list):
            patched[name] = patch
        else:
            patched[name] = labels = dict(axis)
            for label, changes in patch.items():
                if label not in axis:
                    problems.append(
                        f"quick.axes.{name}: there is no label {label}; write one of {list(axis)}"
                    )
                elif changes is None:
                    del labels[label]
                else:
                    before = axis[label] or {}
                    labels[label] = merged = {**before, **changes}
                    each = before.get(EACH), changes.get(EACH)
                    if isinstance(each[0], dict) and isinstance(each[1], dict):
                        merged[EACH] = {**each[0], **each[1]}
    return patched


@dataclass(frozen=True)
class Cell:
    """One run of an experiment.

    Attributes
    ----------
    at
        What the axes' columns hold; None in the columns of other labels' values.
    seed
        Its seed.
    setup
        The resolved scenario.
    key
        What it depends on, see `cell_key`.
    """

    at: dict[str, Value]
    seed: int
    setup: Setup
    key: str

    @property
    def name(self) -> str:
        """Its settings in words."""
        held = {**{column: v for column, v in self.at.items() if v is not None}, "seed": self.seed}
        return ", ".join(f"{column} {value}" for column, value in held.items())


@dataclass(frozen=True)
class Experiment:
    """An experiment whose cells are known.

    Attributes
    ----------
    settings
        Its file, as it is run: `quick` and overrides taken in, its scenario by the full path.
    columns
        The columns that tell the cells apart, but for the seed: the axes, each followed by the
        settings that its labels have several values of.
    cells
        The cells, the last axis and then the seed varying fastest.
    """

    settings: ExperimentSettings
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class _Choice:
    """One way to take an axis: what its columns hold, and the settings."""

    at: dict[str, Value]
    settings: Overrides


def plan_experiment(
    path: Path, *, quick: bool = False, overrides: Sequence[str] = ()
) -> Experiment:
    """Read the file of an experiment and resolve all its cells.

    Parameters
    ----------
    path
        The file.
    quick
        Whether to replace what its `quick` says.
    overrides
        Texts ``key.sub=value`` for all cells, on top of the file's settings for all cells.

    Raises
    ------
    ConfigError
        The file or the settings of a cell are wrong.
    TaskError
        A data set is missing.
    """
    settings = read_experiment(path)
    if quick:
        try:
            settings = settings.made_quick()
        except ConfigError as error:
            raise ConfigError(error.problems, f"{path}, {error.source}") from error
    choices, columns = _choices(settings, str(path))
    _check_overrides(settings, choices, overrides)
    seeds = settings.seeds if isinstance(settings.seeds, int) else len(settings.seeds)
    count = math.prod(map(len, choices)) * seeds
    if count > MOST_CELLS:
        raise ConfigError([f"axes: {count} cells, and {MOST_CELLS} are the most"], str(path))
    combinations = [_joined(combination) for combination in itertools.product(*choices)]
    checks: list[str] = []
    for place, figure in enumerate(settings.figures):
        measured = ROUND_COLUMNS if figure.of_rounds else SUMMARY_COLUMNS
        checks += figure.problems(f"figures[{place}]", columns, measured, combinations)
    files = [figure.file for figure in settings.figures]
    checks += [
        f"figures: {len(files)} figures, and two are called {name}; name one of them"
        for name in sorted({name for name in files if files.count(name) > 1})
    ]
    if checks:
        raise ConfigError(checks, str(path))
    scenario = path.parent / settings.scenario if settings.scenario else default_path()
    everywhere = settings.settings | dict(map(_parsed, overrides))
    cells: list[Cell] = []
    for combination in itertools.product(*choices):
        at = {column: _joined(combination).get(column) for column in columns}
        own = {key: value for choice in combination for key, value in choice.settings.items()}
        cells += _seeded(at, scenario, [*_texts(everywhere), *_texts(own)], settings.seed_list)
    as_run = {"settings": everywhere, "scenario": str(scenario.resolve()), "quick": QuickSettings()}
    return Experiment(settings.model_copy(update=as_run), columns, tuple(cells))


def _parsed(override: str) -> tuple[str, Any]:
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError([f"{override!r} is no override; write key.sub=value"], "the command line")
    try:
        return key.strip(), parse_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigError([f"{key}: {value!r} is not YAML"], "the command line") from error


def read_experiment(path: Path) -> ExperimentSettings:
    """Read the file of an experiment.

    Raises
    ------
    ConfigError
        With every problem at once.
    """
    raw = read_yaml(path, hint="write `name:`, `axes:` and `seeds:`")
    try:
        return ExperimentSettings.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(problems_in(error, ExperimentSettings), str(path)) from error


def _seeded(
    at: dict[str, Value], scenario: Path, texts: Sequence[str], seeds: Sequence[int]
) -> Iterator[Cell]:
    try:
        setup = Setup.resolve(scenario, [*texts, *_QUIET])
    except ConfigError as error:
        named = ", ".join(f"{column} {value}" for column, value in at.items() if value is not None)
        source = f"{error.source} with {named}" if named else error.source
        raise ConfigError(error.problems, source) from error
    for seed in seeds:
        config = setup.config.model_copy(update={"seed": seed})
        own = replace(setup, config=config)
        yield Cell(at, seed, own, cell_key(own))


def _joined(combination: Sequence[_Choice]) -> dict[str, Value]:
    return {column: value for choice in combination for column, value in choice.at.items()}


def _choices(
    settings: ExperimentSettings, source: str
) -> tuple[list[list[_Choice]], tuple[str, ...]]:
    """The ways to take each axis, and all columns."""
    problems: list[str] = []
    choices: list[list[_Choice]] = []
    owners: dict[str, str] = {}
    for name, axis in settings.axes.items():
        if isinstance(axis, list):
            found = list(_spanned({}, {}, {name: axis}))
        else:
            found = []
            for label, overrides in axis.items():
                plain = dict(overrides or {})
                each = plain.pop(EACH, {})
                problem = _problem_of_each(each)
                if problem:
                    problems.append(f"axes.{name}.{label}.{EACH}: {problem}")
                else:
                    found += _spanned({name: label}, plain, each)
        choices.append(found)
        for column in dict.fromkeys(column for choice in found for column in choice.at):
            if owners.setdefault(column, name) != name:
                problems.append(
                    f"axes.{name}: the column {column} is one of axes.{owners[column]} too; "
                    "give the axis another name, or merge the two"
                )
            elif column in TAKEN:
                problems.append(f"axes.{name}: a column is named {column} already; name another")
    if problems:
        raise ConfigError(problems, source)
    return choices, tuple(owners)


def _problem_of_each(each: object) -> str | None:
    if not isinstance(each, dict) or not all(isinstance(v, list) and v for v in each.values()):
        return "write settings with a list of values each"
    names = [_column(key) for key in each]
    twice = next((name for name in names if names.count(name) > 1), None)
    return f"two settings end in {twice}, and so would two columns" if twice else None


def _column(key: str) -> str:
    """The column of a setting that is varied: the last part of its name."""
    return key.rpartition(".")[2]


def _spanned(
    at: dict[str, Value], settings: Overrides, each: Mapping[str, Sequence[Any]]
) -> Iterator[_Choice]:
    """All combinations of the values of some settings."""
    for values in itertools.product(*each.values()):
        chosen = dict(zip(each, values, strict=True))
        columns = {_column(key): _as_value(value) for key, value in chosen.items()}
        yield _Choice(at | columns, settings | chosen)


def _as_value(value: Any) -> Value:
    if isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value, default=str)


def _texts(settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={json.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in settings.items()
    ]


def _check_overrides(
    settings: ExperimentSettings, choices: Sequence[Sequence[_Choice]], overrides: Sequence[str]
) -> None:
    """Refuse an override of what tells cells apart: the tables would not say what was run."""
    varied = {key for axis in choices for choice in axis for key in choice.settings} | {"seed"}
    problems = []
    for text in overrides:
        key = text.partition("=")[0].strip()
        for other in sorted(varied):
            if key == other or key.startswith(f"{other}.") or other.startswith(f"{key}."):
                problems.append(f"{key}: the experiment varies {other}; change its file instead")
    if problems:
        raise ConfigError(problems, f"the settings for {settings.name}")
