"""One file describes a run: the settings that each room defines, composed, read and checked."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterator, Sequence
from copy import copy
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from powertrip.errors import ConfigError
from powertrip.exchange.settings import ExchangeSettings
from powertrip.runtime.settings import (
    CheckpointSettings,
    EmulationSettings,
    GoalSettings,
    RuntimeSettings,
)
from powertrip.selection.settings import SelectionSettings
from powertrip.settings import Settings
from powertrip.simulation.settings import SimulationSettings
from powertrip.telemetry.settings import TelemetrySettings
from powertrip.training.settings import (
    OuterSettings,
    PartitionSettings,
    TaskSettings,
    TrainingSettings,
)
from powertrip.world.settings import NetworkSettings, SitesSettings, WorldSettings


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are booleans (`off` and `on` are words), and in which a
    key cannot stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse what a plain loader would let the later of two equal keys overwrite."""
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key.value} stands there a second time")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def parse_yaml(text: str) -> Any:
    """Read YAML as the scenarios are written in.

    Raises
    ------
    yaml.YAMLError
        It is none, or a value in it cannot be read.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, LookupError, AttributeError, RecursionError) as error:
        # What its constructors raise at a date such as 2001-99-99, a tag that does not fit, ...
        raise yaml.YAMLError(f"a value in it cannot be read: {error}") from error


class Config(Settings):
    """A run: where it takes place, what it learns, how it decides, when it ends."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run: letters, digits, dots, dashes and underscores; part of its folder's name."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything random: equal seeds give equal initial models, batches and draws."""
    goal: GoalSettings = GoalSettings()
    """When the run ends."""
    sites: SitesSettings
    """The sites; rank i of the job is the i-th of them, and the first one is the hub."""
    network: NetworkSettings
    """The links between the sites, as the decisions model them and as they are emulated."""
    emulation: EmulationSettings = EmulationSettings()
    """How processes on one machine come to have such links."""
    world: WorldSettings = WorldSettings()
    """How power becomes speed, and how fast the traces' time passes."""
    task: TaskSettings = TaskSettings()
    """What is learned."""
    partition: PartitionSettings = PartitionSettings()
    """Which site holds which training samples."""
    training: TrainingSettings = TrainingSettings()
    """Local training between two exchanges."""
    outer: OuterSettings = OuterSettings()
    """The step that all members take with the mean of their updates."""
    selection: SelectionSettings = SelectionSettings()
    """Which sites take part, decided again and again."""
    exchange: ExchangeSettings = ExchangeSettings()
    """How members average their updates."""
    runtime: RuntimeSettings = RuntimeSettings()
    """How the processes behave."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When the run is saved."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """What is shown and served."""
    simulation: SimulationSettings = SimulationSettings()
    """How the run is simulated, where it is."""


def default_path() -> Path:
    """The packaged default scenario."""
    return Path(str(resources.files("powertrip") / "scenarios" / "eight-regions.yaml"))


def load_config(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a scenario, apply overrides and check everything.

    Parameters
    ----------
    path
        A YAML file; None means the packaged default.
    overrides
        Texts ``key.sub=value``; the value is read as YAML, and ``sites.list.0.gpus=4`` reaches
        into a list.

    Raises
    ------
    ConfigError
        With every problem at once, each with its place in the file.
    """
    path = path or default_path()
    raw = read_yaml(path, hint="write `sites:` and `network:` at least")
    problems: list[str] = []
    for text in overrides:
        problem = _apply(raw, text)
        if problem:
            problems.append(problem)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems.extend(problems_in(error, Config))
    if problems:
        raise ConfigError(problems, str(path))
    return config


def read_yaml(path: Path, *, hint: str) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping.

    Parameters
    ----------
    path
        The file.
    hint
        What to write, where the file holds nothing.

    Raises
    ------
    ConfigError
        It cannot be read, or is not such a file.
    """
    try:
        raw = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror or error}"], str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(["is not UTF-8 text; it should be a YAML file"], str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"is not YAML: {' '.join(str(error).split())}"], str(path)) from error
    if not isinstance(raw, dict):
        raise ConfigError([f"holds no settings; {hint}"], str(path))
    return raw


def problems_in(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """What is wrong with the settings of a file, one text a problem, in the file's own terms.

    Parameters
    ----------
    error
        What pydantic says.
    root
        The settings that the file holds.
    """
    details = error.errors(include_url=False)
    return [_describe(d, root) for d in details if not _follows_from_another(d, details)]


def _apply(raw: dict[str, Any], text: str) -> str | None:
    """Apply one override in place; returns what is wrong with it, if anything."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        file = text.endswith((".yaml", ".yml"))
        hint = f"; name a scenario by --config {text}" if file else ", for example training.lr=0.05"
        return f"{text!r} is no override; write key.sub=value{hint}"
    try:
        parsed = parse_yaml(value)
    except yaml.YAMLError:
        return f"{key}: {value!r} is not YAML; quote it if it holds special characters"
    node: Any = raw
    for depth, part in enumerate(parts):
        place = _key_in(node, part)
        if place is None:
            return f"{key}: there is no entry {part} in a list of {len(node)}, counted from 0"
        if depth == len(parts) - 1:
            node[place] = parsed
            break
        found = node[place] if isinstance(node, list) else node.get(place, {})
        if found is None:
            found = {}
        elif isinstance(found, str) and part in _SHORT_FOR:
            found = {_SHORT_FOR[part]: found}
        elif not isinstance(found, dict | list):
            return f"{key}: {'.'.join(parts[: depth + 1])} is no section with settings in it"
        # A copy, since what an anchor of the file names can stand in several places.
        node[place] = copy(found)
        node = node[place]
    return None


_SHORT_FOR = {"task": "name", "partition": "kind", "outer": "kind"}
"""Sections that may stand as one word, and the setting in them that the word is for."""


def _key_in(node: dict[str, Any] | list[Any], part: str) -> Any:
    """What `node` is indexed by for `part`; None for a list without such an entry."""
    if isinstance(node, dict):
        return part
    return int(part) if part.isdecimal() and int(part) < len(node) else None


def _follows_from_another(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Whether a list counts as too short only because entries of it are wrong."""
    loc = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in details
    )


def _describe(detail: ErrorDetails, root: type[BaseModel]) -> str:
    where, model = _place(detail["loc"], root)
    if detail["type"] == "extra_forbidden":
        name = str(detail["loc"][-1])
        known = sorted(model.model_fields) if model else []
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{where}: unknown setting; {hint}" if known else f"{where}: unknown setting"
    if detail["type"] == "missing":
        return f"{where}: is missing"
    if detail["type"] == "union_tag_invalid":
        tag, expected = detail["ctx"]["tag"], detail["ctx"]["expected_tags"]
        return f"{where}.kind: {tag!r} is none of {expected}"
    if detail["type"] == "union_tag_not_found":
        return f"{where}.kind: is missing"
    if detail["type"] in ("model_type", "model_attributes_type"):
        return f"{where}: is a section; write its settings below it, got {_short(detail['input'])}"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if message[1:2].islower() else message
    if detail["type"] in ("tuple_type", "too_short"):
        message = message.replace("tuple", "list")
    shown = detail["input"]
    if detail["type"] == "value_error" or isinstance(shown, dict | list):
        return f"{where}: {message}"
    return f"{where}: {message}, got {_short(shown)}"


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 2, 200, 100, 200


def _short(value: object) -> str:
    """A value as it is shown in an error; an anchor can make a huge one of a small file."""
    return _SHORT.repr(value)


def _place(loc: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, type[BaseModel] | None]:
    """A readable path, and the settings class that its last part belongs to, if any.

    Pydantic names the variant of a union as a part of the location; the file has no such key.
    """
    text = ""
    annotation: Any = root
    owner: type[BaseModel] | None = None
    for part in loc:
        models = tuple(_models_in(annotation))
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        variant = next((m for m in models if part in _kinds(m)), None) if len(models) > 1 else None
        if variant is not None:
            annotation = variant
            continue
        text += f".{part}"
        owner = models[0] if len(models) == 1 else None
        field = owner.model_fields.get(part) if owner else None
        annotation = field.annotation if field else None
    return text.lstrip(".") or "the file", owner


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from _models_in(argument)


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def dump_config(config: Config) -> str:
    """A resolved config as YAML, every setting with its description as a comment."""
    return "\n".join(_dump_model(config, 0)) + "\n"


def _dump_model(model: BaseModel, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        for line in (field.description or "").splitlines():
            yield f"{pad}# {line.strip()}"
        if isinstance(value, BaseModel):
            yield f"{pad}{name}:"
            yield from _dump_model(value, depth + 1)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield f"{pad}{name}:"
            for item in value:
                # A list of models is long: its comments would be repeated for every entry.
                plain = item.model_dump(mode="json", exclude_defaults=False)
                yield f"{pad}  - {_flow(plain)}"
        else:
            plain = model.model_dump(mode="json", include={name})[name]
            yield f"{pad}{name}: {_flow(plain)}"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=100_000, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
