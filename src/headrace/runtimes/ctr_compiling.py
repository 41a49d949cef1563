"""The program of the child that compiles a click model's kernels, and keeps them: see `ctr_kernels`."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.runtimes.ctr import servable_of
from headrace.runtimes.ctr_kernels import run_once


def main() -> None:
    """Compile and keep what a version needs."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 1
    try:
        run_once(servable_of(Path(sys.argv[1])))
        code = 0
    except HeadraceError as error:  # a trainer may have removed the version meanwhile
        sys.stderr.write(f"{error.message}\n")
    except BaseException:  # noqa: BLE001  # Said as Python would say it.
        traceback.print_exc()
    # Ended in order, Python would abort: the thread above holds standard input's lock.
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
