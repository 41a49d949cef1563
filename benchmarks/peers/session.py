"""The ONNX Runtime session that every peer uses: one thread, no spinning, otherwise as it comes."""

from __future__ import annotations

import onnxruntime


def load(path: str) -> onnxruntime.InferenceSession:
    """Load a model on one thread: the server has one core.

    Args:
        path: The ONNX file.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
