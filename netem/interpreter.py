"""Start modules of this package in processes of their own, installed or not."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[1])


def python_main(module: str, *arguments: str) -> list[str]:
    """Return a command that calls a module's `main(arguments)` and ends with what it returns.

    Neither the working directory nor the environment has a part in what is imported.
    """
    code = (
        f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-P", "-c", code, *arguments]
