"""What the source must not do, and what docs/security.md says of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from powertrip.runtime.secret import SECRET_VARIABLE
from tests.processes import Run

REPO = Path(__file__).parents[1]
PAGE = (REPO / "docs" / "security.md").read_text(encoding="utf-8")
SOURCES = sorted(
    path for folder in ("powertrip", "netem", "scripts") for path in (REPO / folder).rglob("*.py")
)

# Modules that read pickles, or may.
PICKLERS = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "jsonpickle", "marshal", "shelve",
    "joblib", "multiprocessing",
}  # fmt: skip
ALLOWED = {
    ("powertrip/experiments/experiment.py", "joblib"): "counts cores",
    ("powertrip/experiments/backends.py", "joblib"): "worker processes of the same user",
    ("powertrip/simulation/worker.py", "multiprocessing"): "a private pair of sockets",
    ("powertrip/simulation/workers.py", "multiprocessing"): "the same",
}
# Of torch.distributed: each would read a pickle from a peer.
OBJECTS = {
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list",
    "scatter_object_list", "send_object_list",
}  # fmt: skip
LISTENING = {"bind", "create_server", "start_http_server", "start_server", "start_unix_server"}


def name(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


@cache
def parsed(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def nodes(path: Path, kind: type[ast.AST]) -> Iterator[ast.AST]:
    return (node for node in parsed(path) if isinstance(node, kind))


def imported(path: Path) -> set[str]:
    found = set()
    for node in nodes(path, ast.Import | ast.ImportFrom):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def called(call: ast.Call) -> str:
    """Such as `torch.load`."""
    return ast.unparse(call.func)


def wrong(calls: Iterable[ast.AST]) -> list[str]:
    """Calls that may run what they read."""
    found = []
    for call in calls:
        if not isinstance(call, ast.Call):
            continue
        text = called(call)
        keywords = {each.arg: ast.unparse(each.value) for each in call.keywords}
        last = text.split(".")[-1]
        if (
            text in {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
            or (text == "torch.load" and keywords.get("weights_only") != "True")
            or (text in {"yaml.load", "yaml.load_all"} and keywords.get("Loader") != "_Loader")
            or text in {"yaml.unsafe_load", "yaml.full_load", "joblib.load"}
            or keywords.get("allow_pickle", "False") != "False"
            or keywords.get("shell", "False") != "False"
            or last in OBJECTS | {"read_pickle"}
        ):
            found.append(ast.unparse(call))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path)", "torch.load(path, weights_only=False)", "eval(text)", "exec(text)",
        "np.load(path, allow_pickle=True)", "yaml.load(text, Loader=yaml.Loader)",
        "subprocess.run(text, shell=True)", "dist.recv_object_list(objects)",
        "pd.read_pickle(path)",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(source):
    assert wrong(ast.walk(ast.parse(source))) == [source]


def test_the_search_lets_pass_what_is_safe():
    source = (
        "torch.load(path, weights_only=True); np.load(path); model.eval();"
        "yaml.load(text, Loader=_Loader); subprocess.run([text])"
    )
    assert not wrong(ast.walk(ast.parse(source)))


def test_no_source_runs_what_it_reads():
    found = {name(path): wrong(parsed(path)) for path in SOURCES}
    assert len(found) > 150
    assert {place: calls for place, calls in found.items() if calls} == {}


def test_no_source_reads_pickles():
    reading = {(name(path), module) for path in SOURCES for module in imported(path) & PICKLERS}
    assert reading == set(ALLOWED), "docs/security.md says where pickles are safe"


def test_every_listener_is_in_the_table():
    table = PAGE.partition("## Listeners")[2].partition("##")[0]
    listening = {
        name(path)
        for path in SOURCES
        for call in nodes(path, ast.Call)
        if called(call).split(".")[-1] in LISTENING and called(call) != "signature.bind"
    }
    assert "powertrip/runtime/control.py" in listening
    missing = {place for place in listening if f"`{place}`" not in table}
    assert not missing, "docs/security.md lists who listens where"


def test_the_page_names_files_that_exist():
    for text in PAGE.split("`")[1::2]:
        if text.endswith(".py"):
            assert (REPO / text).exists() or (REPO / "powertrip" / text).exists(), text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="see tests/processes.py")
def test_a_site_with_another_secret_is_refused_and_the_run_says_what_to_do(tmp_path):
    secrets = {0: "that of all the others", 1: "one that is not that"}
    script = tmp_path / "start.sh"
    each = "".join(
        f'[ "$RANK" = {r} ] && export {SECRET_VARIABLE}="{s}"\n' for r, s in secrets.items()
    )
    script.write_text(f'#!/bin/sh\n{each}exec "{sys.executable}" -m powertrip.train "$@"\n')
    script.chmod(0o700)
    agent = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--no-python"]
    options = ("sites.count=2", "telemetry.metrics.port=0")
    with Run([*agent, str(script)], *options, folder=tmp_path / "run") as run:
        assert run.end() != 0
        run.assert_gone()
    assert "site 1 is not admitted by the coordinator: give all processes the same" in run.stderr
    assert "started again" not in run.stderr
    assert not any(secret in run.output for secret in secrets.values())
