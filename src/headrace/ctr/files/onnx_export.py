"""Export of click models to ONNX, with the same predictions.

Inputs are joined as in the ``rows`` signature of the ctr runtime, except that indices number the rows of all
tables together, as in ``Block.indices``. An index is a bucket's number plus its table's first row
(``Features.tables``), or 0 for a slot without a value. The caller hashes, because ONNX has no operator for
it. Requires the package ``onnx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.model_settings import DEEP, FIELD_AWARE, ModelSettings
from headrace.ctr.models.interactions import crossing
from headrace.stream.block import Features

if TYPE_CHECKING:
    import onnx

_OPSET, _IR_VERSION = 17, 8
_EXTERNAL_BYTES = 2**30  # half of protobuf's limit of 2 GiB for a message
_SMALL_BYTES = 1024  # a smaller constant stays in the model, as onnx.save decides
_PAGE_BYTES = 4096  # ONNX asks for offsets that are multiples of it, so that the data can be mapped


def export(settings: ModelSettings, features: Features, weights: Weights, file: Path) -> None:
    """Write a model as ONNX; large tables go to a separate file beside it.

    Args:
        settings: The model's settings.
        features: Layout of the model's rows.
        weights: The model's weights; quantized tables are exported as float32.
        file: Target file, for example ``model.onnx``.

    Raises:
        ConfigError: The package ``onnx`` is missing, or the model is an mdn, or has interactions or exact
            fields.
        OSError: A file cannot be written.
    """
    try:
        import onnx  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError(f"exporting needs the package onnx ({error}); pip install onnx") from error
    data = file.with_name(f"{file.name}.data")
    model, beside = _built(settings, features, weights, data.name)
    data.unlink(missing_ok=True)
    if beside:
        with data.open("wb") as opened:
            for offset, array in beside.items():
                opened.seek(offset)
                opened.write(array.data)
    onnx.save(model, str(file))


def _built(
    settings: ModelSettings, features: Features, weights: Weights, location: str
) -> tuple[onnx.ModelProto, dict[int, Array]]:
    """Build the model; see ``export``.

    Returns:
        The model, and the arrays that belong into the file ``location``, by offset. They never become part
        of a message: protobuf cannot even copy one above 2 GiB.
    """
    if settings.kind == "mdn":
        raise ConfigError("an mdn's distribution cannot be exported to ONNX; serve its own files")
    if settings.interactions:
        raise ConfigError(
            "interactions hash pairs of values, which ONNX cannot do; export a model without them"
        )
    if features.exact_columns:
        names = ", ".join(sorted({column.field.name for column in features.exact_columns}))
        raise ConfigError(
            f'{names}: ONNX cannot look up the row of an exact value; export a model with keys = "hash"'
        )
    crossing(settings, features)
    values = sum(table.values.size for table in weights.tables.values())
    values += sum(array.size for array in weights.dense.values())
    is_large = values * np.dtype(np.float32).itemsize > _EXTERNAL_BYTES
    graph = _Graph(settings, features, weights, location if is_large else "")
    return graph.finished(), graph.beside


class _Graph:
    """Builder of an ONNX graph; each method adds nodes and returns the name of their result.

    Attributes:
        beside: Larger constants that belong into the file beside the model, by offset.
    """

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights, location: str) -> None:
        """Start without nodes.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
            weights: The model's weights.
            location: Name of the file beside the model for larger constants; "" to keep them in the model.
        """
        from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 - optional

        self.beside: dict[int, Array] = {}
        self._location, self._end = location, 0
        self._tensor = TensorProto
        self._helper, self._from_array = helper, numpy_helper.from_array
        self._float, self._integer = TensorProto.FLOAT, TensorProto.INT64
        self._unsigned = TensorProto.UINT32
        self._settings, self._features, self._weights = settings, features, weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def finished(self) -> onnx.ModelProto:
        settings, features, helper = self._settings, self._features, self._helper
        inputs = [
            helper.make_tensor_value_info(name, kind, ["rows", width])
            for name, kind, width in _inputs(features, self._unsigned, self._float)
        ]
        indices, dense = self._joined("context", "candidate", features.slots, features.context_slots), ""
        if features.dense_width:
            width, context = features.dense_width, features.context_dense
            dense = self._joined("context_dense", "candidate_dense", width, context)
        parts = [self._constant(self._weights.dense["bias"].reshape(1, 1))]
        if features.slots:
            indices = self._node("Cast", [indices], to=self._integer)
            parts.append(self._sum(self._pooled("linear", indices, 1), [1]))
        if dense:
            parts.append(self._node("MatMul", [dense, self._constant(_column(self._weights.dense["dense"]))]))
        network = [dense] if dense else []
        if settings.kind != "lr" and features.slots:
            pairs, inputs_of_network = self._pairs(indices)
            parts += pairs
            network = [*inputs_of_network, *network]
        if settings.kind in DEEP:
            parts.append(self._network(network))
        logit = parts[0]
        for part in parts[1:]:
            logit = self._node("Add", [logit, part])
        flat = self._node("Squeeze", [logit, self._constant(np.array([1]))])
        self._nodes.append(helper.make_node("Sigmoid", [flat], ["probability"]))
        output = helper.make_tensor_value_info("probability", self._float, ["rows"])
        graph = helper.make_graph(self._nodes, settings.kind, inputs, [output], self._constants)
        opset = [helper.make_opsetid("", _OPSET)]
        model: onnx.ModelProto = helper.make_model(
            graph, opset_imports=opset, ir_version=_IR_VERSION, producer_name="headrace"
        )
        return model

    def _node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def _constant(self, array: Array) -> str:
        name, array = f"constant{len(self._constants)}", np.ascontiguousarray(array)
        is_beside = self._location and array.nbytes >= _SMALL_BYTES
        self._constants.append(self._beside(array, name) if is_beside else self._from_array(array, name))
        return name

    def _beside(self, array: Array, name: str) -> onnx.TensorProto:
        offset = -(-self._end // _PAGE_BYTES) * _PAGE_BYTES
        self.beside[offset], self._end = array, offset + array.nbytes
        kind = self._helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = self._tensor(
            name=name, dims=array.shape, data_type=kind, data_location=self._tensor.EXTERNAL
        )
        for key, value in (("location", self._location), ("offset", offset), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def _sum(self, name: str, axes: list[int]) -> str:
        """Sum over axes and drop them."""
        return self._node("ReduceSum", [name, self._constant(np.array(axes))], keepdims=0)

    def _joined(self, context: str, candidate: str, width: int, of_context: int) -> str:
        if 0 < of_context < width:
            return self._node("Concat", [context, candidate], axis=1)
        return context if of_context else candidate

    def _pooled(self, name: str, indices: str, width: int) -> str:
        """Look up a table's rows, and pool them: ``[rows, fields, width]``."""
        features = self._features
        table = self._constant(widened(self._weights.tables[name], width))
        found = self._node("Gather", [table, indices], axis=0)
        if features.single_valued:
            return found
        pooling = np.zeros((features.slots, len(features.categorical)), np.float32)
        for number, (start, stop) in enumerate(
            zip(features.slot_starts[:-1], features.slot_starts[1:], strict=True)
        ):
            pooling[start:stop, number] = 1
        matrix = self._constant(pooling)
        by_slot = self._node("Transpose", [found], perm=[0, 2, 1])
        sums = self._node("Transpose", [self._node("MatMul", [by_slot, matrix])], perm=[0, 2, 1])
        there = self._node("Cast", [self._node("Greater", [indices, self._constant(np.array(0))])],
                           to=self._float)  # fmt: skip
        one = self._constant(np.array(1, np.float32))
        counts = self._node("Max", [self._node("MatMul", [there, matrix]), one])
        mean = self._constant(features.mean_pooled[None, :])
        divisor = self._node("Where", [mean, counts, one])
        return self._node("Div", [sums, self._node("Unsqueeze", [divisor, self._constant(np.array([2]))])])

    def _pairs(self, indices: str) -> tuple[list[str], list[str]]:
        """Return the logit's pair terms, ``[rows, 1]`` each, and the network's inputs except dense ones."""
        settings, fields = self._settings, len(self._features.categorical)
        if settings.kind in FIELD_AWARE:
            return self._field_aware(self._pooled("embeddings", indices, fields * settings.factors))
        embeddings = self._pooled("embeddings", indices, settings.factors)
        half = self._constant(np.array(0.5, np.float32))
        if settings.kind == "fwfm":
            weights = np.triu(self._weights.dense["pairs"], 1)
            mixed = self._node("MatMul", [self._constant(weights), embeddings])
            total = self._sum(self._node("Mul", [mixed, embeddings]), [1, 2])
            return [self._node("Unsqueeze", [total, self._constant(np.array([1]))])], []
        sums = self._sum(embeddings, [1])
        squares = self._sum(self._node("Mul", [embeddings, embeddings]), [1])
        difference = self._node("Sub", [self._node("Mul", [sums, sums]), squares])
        total = self._node("ReduceSum", [difference, self._constant(np.array([1]))], keepdims=1)
        wide = self._constant(np.array([-1, fields * settings.factors]))
        return [self._node("Mul", [total, half])], [self._node("Reshape", [embeddings, wide])]

    def _field_aware(self, rows: str) -> tuple[list[str], list[str]]:
        fields, factors = len(self._features.categorical), self._settings.factors
        if fields < 2:
            return [], []
        shape = self._constant(np.array([-1, fields * fields, factors]))
        vectors = self._node("Reshape", [rows, shape])
        pairs = [(first, second) for first in range(fields) for second in range(first + 1, fields)]
        left, right = (
            self._node("Gather", [vectors, self._constant(np.array(places))], axis=1)
            for places in (
                [first * fields + second for first, second in pairs],
                [second * fields + first for first, second in pairs],
            )
        )
        products = self._sum(self._node("Mul", [left, right]), [2])
        total = self._node("ReduceSum", [products, self._constant(np.array([1]))], keepdims=1)
        return [total], [products]

    def _network(self, inputs: list[str]) -> str:
        name = self._node("Concat", inputs, axis=1) if len(inputs) > 1 else inputs[0]
        dense, last = self._weights.dense, len(self._settings.hidden)
        for layer in range(last + 1):
            weights, bias = (self._constant(dense[f"layer{layer}.{part}"]) for part in ("weights", "bias"))
            name = self._node("Gemm", [name, weights, bias])
            name = self._node("Relu", [name]) if layer < last else name
        return name


def _inputs(features: Features, bucket: int, number: int) -> list[tuple[str, int, int]]:
    slots, dense = features.context_slots, features.context_dense
    given = [
        ("context", bucket, slots),
        ("context_dense", number, dense),
        ("candidate", bucket, features.slots - slots),
        ("candidate_dense", number, features.dense_width - dense),
    ]
    return [one for one in given if one[2]]


def _column(array: Array) -> Array:
    return array.reshape(-1, 1)


def widened(table: Table, width: int) -> Array:
    """Return a table's weights as float32 ``[rows, width]``, whatever their stored dtype."""
    values = np.asarray(table.values)[:, :width]
    if values.dtype == np.float32 and len(table.scales) == 1 and table.scales[0] == 1:
        return values
    groups = np.arange(len(values)) >> table.shift
    wide: Array = values.astype(np.float32) * np.asarray(table.scales)[groups][:, None]
    return wide
