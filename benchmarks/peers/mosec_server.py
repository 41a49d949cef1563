"""mosec: raw bytes in and out, requests batched in its Rust front end, one ONNX Runtime call per batch."""

from __future__ import annotations

import os

import numpy as np
from mosec import Server, Worker

from benchmarks.peers.session import load

# mosec parses the command line itself (--port, --address); what it does not know comes by environment.
MODEL = os.environ["PEER_MODEL"]
BATCH = int(os.environ["PEER_MAX_BATCH_SIZE"])
WAIT_MILLISECONDS = int(os.environ["PEER_MAX_WAIT_MILLISECONDS"])
FIELDS, DENSE = 26, 13


class Predictor(Worker):
    """One stage, so that nothing is pickled between processes."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        """Load the model."""
        super().__init__()
        self._session = load(MODEL)

    def deserialize(self, data: bytes) -> bytes:
        """Leave the bytes as they are: they are joined once per batch."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Leave the bytes as they are."""
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        """Answer a batch of requests."""
        rows = [len(body) // (4 * (FIELDS + DENSE)) for body in data]
        cat = b"".join([body[: 4 * FIELDS * count] for body, count in zip(data, rows, strict=True)])
        dense = b"".join([body[4 * FIELDS * count :] for body, count in zip(data, rows, strict=True)])
        feed = {
            "cat": np.frombuffer(cat, np.int32).reshape(-1, FIELDS),
            "dense": np.frombuffer(dense, np.float32).reshape(-1, DENSE),
        }
        (p,) = self._session.run(None, feed)
        raw = p.tobytes()
        ends = np.cumsum(rows).tolist()
        return [raw[4 * (end - count) : 4 * end] for end, count in zip(ends, rows, strict=True)]


def main() -> None:
    """Serve until a signal comes."""
    server = Server()
    server.append_worker(Predictor, max_batch_size=BATCH, max_wait_time=WAIT_MILLISECONDS)
    server.run()


if __name__ == "__main__":
    main()
