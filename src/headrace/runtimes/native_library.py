"""Open the native library inside an installed Python package without importing the package.

Importing LightGBM's or XGBoost's package takes seconds, and its calls copy their arguments; the C API avoids
both.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path


def open_library(package: str, name: str) -> ctypes.CDLL:
    """Open a native library; its functions run without the GIL.

    Args:
        package: The package that contains it.
        name: The file name without the suffix, such as ``libxgboost``.

    Raises:
        ImportError: The package is not installed, has no such library, or the library cannot be opened.
    """
    found = next(_files(package, name), None)
    if found is None:
        raise ImportError(f"the package {package} has no {name}", name=package)
    try:
        return ctypes.CDLL(str(found))
    except OSError as error:  # a library that it needs is missing, such as libgomp.so.1
        raise ImportError(f"{found.name} cannot be opened: {error}", name=package) from error


def _files(package: str, name: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    home = Path(spec.submodule_search_locations[0])
    for folder in (home / "lib", home, Path(sys.prefix) / "lib"):  # the last is where conda puts it
        for suffix in (".so", ".dylib"):
            file = folder / (name + suffix)
            if file.is_file():
                yield file
