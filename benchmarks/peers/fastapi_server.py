"""FastAPI on uvicorn: pydantic models, rows as `instances`, one ONNX Runtime call per request."""

from __future__ import annotations

import argparse

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.peers.session import load


class Instance(BaseModel):
    """One row."""

    cat: list[int]
    dense: list[float]


class PredictRequest(BaseModel):
    """The rows to predict."""

    instances: list[Instance]


class PredictResponse(BaseModel):
    """One prediction a row."""

    predictions: list[float]


def application(model: str, handler: str) -> FastAPI:
    """Make the application.

    Args:
        model: The ONNX file.
        handler: `sync` runs each request in FastAPI's thread pool, `async` on the event loop.
    """
    session = load(model)
    app = FastAPI()

    def answer(request: PredictRequest) -> PredictResponse:
        cat = np.array([instance.cat for instance in request.instances], dtype=np.int32)
        dense = np.array([instance.dense for instance in request.instances], dtype=np.float32)
        (p,) = session.run(None, {"cat": cat, "dense": dense})
        return PredictResponse(predictions=p.ravel().tolist())

    def predict(request: PredictRequest) -> PredictResponse:
        return answer(request)

    async def predict_on_loop(request: PredictRequest) -> PredictResponse:
        return answer(request)

    app.post("/v1/models/ctr:predict")(predict if handler == "sync" else predict_on_loop)
    return app


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--handler", choices=["sync", "async"], default="sync")
    options = parser.parse_args()
    app = application(options.model, options.handler)
    uvicorn.run(app, host="127.0.0.1", port=options.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
