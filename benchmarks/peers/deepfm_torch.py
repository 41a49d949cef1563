"""DeepFM in torch, as its users would write it: `python deepfm_torch.py ROWS.npz sparse|dense`."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class DeepFM(nn.Module):
    """Linear terms, pairs of embeddings, and a network over the embeddings and the dense features."""

    def __init__(self, rows: int, fields: int, dense: int, sparse: bool) -> None:
        """Make a fresh one, with 16 factors and layers of 256, 128 and 64."""
        super().__init__()
        self.embeddings = nn.Embedding(rows, 16, sparse=sparse)
        self.linear = nn.Embedding(rows, 1, sparse=sparse)
        self.dense = nn.Linear(dense, 1)
        widths, layers = (fields * 16 + dense, 256, 128, 64), []
        for inputs, units in pairwise(widths):
            layers += [nn.Linear(inputs, units), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.Linear(64, 1))
        nn.init.normal_(self.embeddings.weight, std=0.01)
        nn.init.zeros_(self.linear.weight)

    def forward(self, indices: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """The logits of rows."""
        embedded = self.embeddings(indices)
        pairs = 0.5 * (embedded.sum(1).square() - embedded.square().sum(1)).sum(1)
        inputs = torch.cat([embedded.flatten(1), dense], 1)
        linear = self.linear(indices).sum((1, 2)) + self.dense(dense)[:, 0]
        return linear + pairs + self.network(inputs)[:, 0]


def main(file: str, kind: str) -> None:
    """Learn all rows in batches, and print the CPU time of each batch and the logloss."""
    rows = np.load(file)
    batch, size = int(rows["batch"]), int(rows["table_rows"])
    indices, dense, labels = (torch.from_numpy(rows[name]) for name in ("indices", "dense", "labels"))
    model = DeepFM(size, indices.shape[1], dense.shape[1], kind == "sparse")
    wide = [model.embeddings.weight, model.linear.weight]
    narrow = [*model.dense.parameters(), *model.network.parameters()]
    adam = torch.optim.Adam
    optimizers = (
        [torch.optim.SparseAdam(wide), adam(narrow)] if kind == "sparse" else [adam([*wide, *narrow])]
    )
    measure, losses, seconds = nn.BCEWithLogitsLoss(), [], []
    for start in range(0, len(labels), batch):
        began = time.process_time()
        part = slice(start, start + batch)
        loss = measure(model(indices[part], dense[part]), labels[part])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
        seconds.append(time.process_time() - began)
    print(json.dumps({"seconds": seconds, "losses": losses}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
