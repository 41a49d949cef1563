"""The shapes of a model's arrays."""

from __future__ import annotations

from headrace.ctr.model_settings import DEEP, FIELD_AWARE, ModelSettings
from headrace.ctr.models.missing import flagged
from headrace.stream.features import Features


def expected_shapes(settings: ModelSettings, features: Features) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a model of these settings, by name, except the tables' scales."""
    features = flagged(settings, features)
    fields, inputs = len(features.categorical), features.dense_width
    wide = settings.kind in FIELD_AWARE
    shapes: dict[str, tuple[int, ...]] = {
        "table.linear": (features.rows + sum(one.buckets for one in settings.interactions), 1),
        "dense.bias": (1,),
        "dense.dense": (features.dense_width,),
    }
    if settings.kind != "lr":
        shapes["table.embeddings"] = (features.rows, settings.factors * (fields if wide else 1))
    if settings.kind == "fwfm":
        shapes["dense.pairs"] = (fields, fields)
    if settings.kind in DEEP:
        inputs += fields * (fields - 1) // 2 if wide else fields * settings.factors
        for layer, units in enumerate((*settings.hidden, settings.heads)):
            shapes[f"dense.layer{layer}.weights"] = (inputs, units)
            shapes[f"dense.layer{layer}.bias"] = (units,)
            inputs = units
    exact = {field.table_name: field.buckets for field in features.categorical if field.keys == "exact"}
    return shapes | {f"keys.{name}": (buckets,) for name, buckets in exact.items()}
