"""Compile and cache the kernels of Vowpal Wabbit's models, as the child process that `vw` starts."""

from __future__ import annotations

from headrace.runtimes.kernel_compiling import compile_as_child
from headrace.runtimes.vw import run_once

if __name__ == "__main__":
    compile_as_child(run_once)
