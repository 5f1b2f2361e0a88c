from __future__ import annotations

import subprocess
import sys


def test_threads_are_limited_before_numpy_is_loaded():
    code = (
        "import sys, os; from powertrip.simulation.threads import one_thread_each;"
        "one_thread_each(); print('numpy' in sys.modules, os.environ['OMP_NUM_THREADS'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "1"]
