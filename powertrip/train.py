"""The main job: ``torchrun --nproc_per_node=8 -m powertrip.train``.

Under torchrun (or any launcher that sets the same environment) each process becomes the supervisor
of one site. Without a launcher, ``python -m powertrip.train`` starts torchrun's agent itself, with
as many processes as the scenario has sites.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_TELLS_S = 10.0  # within which a machine's first process has found and told a mistake
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="powertrip.train",
        description="Train one model across sites whose power and links change.",
        epilog="Start it with torchrun --nproc_per_node=SITES -m powertrip.train ...; started by "
        "itself it does the same on this machine.",
    )
    parser.add_argument("--config", type=Path, help="scenario (YAML); default: the packaged one")
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with a run, from its last checkpoint"
    )
    parser.add_argument(
        "--json", action="store_true", help="end standard output with the summary as one JSON line"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key.sub=value", help="settings that replace the file's"
    )
    return parser.parse_intermixed_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise one site under a launcher, or be the launcher."""
    # Ctrl-C before anything is running ends this process, and shows nobody a traceback: that is
    # why the imports that take time come after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = parse(arguments)
    if all(name in os.environ for name in _LAUNCHER_VARIABLES):
        return _supervise(options)
    from powertrip.launcher import launch

    return launch(
        options.config, options.overrides, json_summary=options.json, resume=options.resume
    )


def _await_end(limit_s: float) -> None:
    """Wait for the launcher's request to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.sigtimedwait({signal.SIGTERM}, limit_s)


def _supervise(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from powertrip.coordination.membership import HUB, check_world_size, site_of_rank
    from powertrip.errors import PowerTripError
    from powertrip.runtime.emulation import SiteLinks, join_links
    from powertrip.runtime.resuming import resolve
    from powertrip.runtime.secret import load_secret
    from powertrip.runtime.supervisor import Supervisor, child_environment, presence_listener

    rank = int(os.environ["RANK"])
    try:
        setup = resolve(
            options.config, options.overrides, json_summary=options.json, resume=options.resume
        )
        setup.check_real()
        load_secret(setup.config, setup.base_dir)  # what is wrong with it is told here, once
        world = setup.build_world()
        check_world_size(int(os.environ["WORLD_SIZE"]), len(setup.config.sites.selected))
        presence = None
        if site_of_rank(rank) == HUB:
            presence = presence_listener(os.environ)
        setup = replace(setup, links=join_links(setup.config, world, os.environ))
    except PowerTripError as error:
        # All processes of a machine find the same. The launcher ends them as soon as one has
        # failed, which must not be before the first of them has told.
        if os.environ["LOCAL_RANK"] == "0":
            print(f"powertrip: {error}", file=sys.stderr, flush=True)  # noqa: T201
        else:
            _await_end(_TELLS_S)
        return error.exit_code
    roles: tuple[str, ...] = ("site",)
    site = site_of_rank(rank)
    if site == HUB:
        roles = ("coordinator", "site")
        count = len(setup.config.sites.selected)
        # Importing torch takes each of them seconds.
        print(f"powertrip: starting {count} sites", file=sys.stderr, flush=True)  # noqa: T201
    links = SiteLinks(setup.links, site, os.environ, presence) if setup.links.socket_path else None
    supervisor = Supervisor(
        setup,
        roles,
        child_environment(os.environ),
        grace_s=setup.config.runtime.stop_grace_s + 5.0,
        links=links,
        presence=presence,
    )
    try:
        return supervisor.run()
    finally:
        if presence is not None:
            presence.close()


if __name__ == "__main__":
    sys.exit(main())
