"""Rules about the source that import-linter cannot state."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import powertrip

ROOT = Path(powertrip.__file__).parent
SETTINGS = sorted(ROOT.glob("**/*settings.py"))


def settings_classes():
    for path in SETTINGS:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                yield pytest.param(node, id=f"{path.parent.name}.{node.name}")


def test_there_are_settings_in_every_room():
    rooms = {path.parent.name for path in SETTINGS}
    assert rooms >= {"world", "selection", "training", "exchange", "runtime", "telemetry"}


@pytest.mark.parametrize("node", list(settings_classes()))
def test_every_setting_has_its_description_below_it(node):
    for line, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and line.target.id != "model_config":
            assert isinstance(after, ast.Expr), f"{node.name}.{line.target.id}"
            assert after.value.value.strip().endswith((".", ")")), f"{node.name}.{line.target.id}"
