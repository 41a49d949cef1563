"""What is said about models: metadata, states, and configurations that come over the network."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import FailedPrecondition, InvalidRequest, NotFound, Unsupported
from headrace.frontends.tfserving.descriptions import SignatureDefMap
from headrace.frontends.wire import protos
from headrace.lifecycle.version_states import VersionStatus
from tests.unit.frontends.oip.doubles import ctr, echo
from tests.unit.frontends.tfserving.doubles import ServiceDouble, call, classifier, http, message


def info(name: str, dtype: str, *sizes: str) -> dict[str, Any]:
    dimensions = [{"size": size, "name": ""} for size in sizes]
    return {"dtype": dtype, "tensor_shape": {"dim": dimensions, "unknown_rank": False}, "name": f"{name}:0"}


def test_metadata_over_rest_is_protobufs_json() -> None:
    signature = {
        "inputs": {
            "cat": info("cat", "DT_INT32", "-1", "26"),
            "dense": info("dense", "DT_FLOAT", "-1", "13"),
        },
        "outputs": {"p": info("p", "DT_FLOAT", "-1", "1")},
        "method_name": "tensorflow/serving/predict",
    }
    assert http(ServiceDouble(ctr()), "GET", "/v1/models/ctr/versions/3/metadata") == {
        "model_spec": {"name": "ctr", "version": "3", "signature_name": ""},
        "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
    }


def test_metadata_over_grpc_is_a_map_of_signatures() -> None:
    asked = message(
        "GetModelMetadataRequest", model_spec={"name": "people"}, metadata_field=["signature_def"]
    )
    response = call(ServiceDouble(classifier(kind="classify")), "GetModelMetadata", asked)
    packed = response.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    found = SignatureDefMap.FromString(packed.value).signature_def["serving_default"]
    assert found.method_name == "tensorflow/serving/classify"
    assert (found.inputs["city"].dtype, found.inputs["city"].name) == (7, "city:0")
    assert [one.size for one in found.outputs["scores"].tensor_shape.dim] == [-1, 3]
    assert response.model_spec.version.value == 3


@pytest.mark.parametrize("names", [[], ["other"]])
def test_only_signatures_are_there_to_ask_for(names: list[str]) -> None:
    asked = message("GetModelMetadataRequest", model_spec={"name": "ctr"}, metadata_field=names)
    with pytest.raises(InvalidRequest, match="metadata_field: expected 'signature_def'"):
        call(ServiceDouble(ctr()), "GetModelMetadata", asked)


READY = {"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
FAILED = {"version": "1", "state": "END", "status": {"error_code": "UNKNOWN", "error_message": "corrupt"}}


@pytest.mark.parametrize(
    ("path", "expected"),
    [("", [READY, FAILED]), ("/versions/1", [FAILED]), ("/versions/3", [READY]), ("/labels/stable", [READY])],
)
def test_states_are_told_of_all_versions_or_of_one(path: str, expected: Any) -> None:
    service = ServiceDouble(ctr())
    assert http(service, "GET", f"/v1/models/ctr{path}") == {"model_version_status": expected}


def test_states_are_told_over_grpc() -> None:
    asked = message("GetModelStatusRequest", model_spec={"name": "ctr"})
    found = call(ServiceDouble(ctr()), "GetModelStatus", asked, models=True).model_version_status
    assert [(one.version, one.state, one.status.error_code) for one in found] == [(3, 30, 0), (1, 50, 2)]
    assert found[1].status.error_message == "corrupt"


class _WithoutVersions(ServiceDouble):
    def status(self, model: str) -> list[VersionStatus]:
        return []

    def problem(self, model: str) -> str:
        return "its directory cannot be listed"


@pytest.mark.parametrize("path", ["", "/versions/1", "/labels/stable"])
def test_a_model_without_versions_is_not_found_and_says_why(path: str) -> None:
    told = "^Could not find any versions of model ctr: its directory cannot be listed$"
    with pytest.raises(NotFound, match=told):
        http(_WithoutVersions(ctr()), "GET", f"/v1/models/ctr{path}")
    asked = message("GetModelStatusRequest", model_spec={"name": "ctr"})
    with pytest.raises(NotFound, match=told):
        call(_WithoutVersions(ctr()), "GetModelStatus", asked, models=True)


@pytest.mark.parametrize("path", ["none", "ctr/versions/9", "ctr/labels/canary"])
def test_states_of_what_is_not_there_are_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        http(ServiceDouble(ctr()), "GET", f"/v1/models/{path}")


def reload(service: Any, *models: Any, **config: Any) -> Any:
    given = config or {"model_config_list": {"config": models}}
    return call(
        service, "HandleReloadConfigRequest", message("ReloadConfigRequest", config=given), models=True
    )


def test_a_config_that_names_all_models_looks_at_them_anew() -> None:
    service = ServiceDouble(ctr(), echo("FP32"), admin=True)
    response = reload(service, {"name": "echo"}, {"name": "ctr", "model_platform": "onnx"})
    assert response.status.error_code == 0
    assert service.asked == [("reload", "echo"), ("reload", "ctr")]


def test_a_config_is_refused_while_administration_is_off() -> None:
    with pytest.raises(FailedPrecondition, match="off"):
        reload(ServiceDouble(ctr()), {"name": "ctr"})


@pytest.mark.parametrize(
    ("models", "error", "text"),
    [
        ([], Unsupported, "name exactly 'ctr'"),
        ([{"name": "ctr"}, {"name": "new"}], Unsupported, "cannot be added or removed"),
        ([{"name": "ctr"}, {"name": "ctr"}], InvalidRequest, "named twice"),
        (
            [{"name": "ctr", "base_path": "/models"}],
            Unsupported,
            "base_path of model 'ctr' cannot be changed",
        ),
        ([{"name": "ctr", "version_labels": {"a": 1}}], Unsupported, "version_labels of model 'ctr'"),
        ([{"name": "ctr", "model_version_policy": {"all": {}}}], Unsupported, "model_version_policy"),
    ],
)
def test_what_a_config_cannot_change_is_refused_before_anything_is_done(
    models: Any, error: Any, text: str
) -> None:
    service = ServiceDouble(ctr(), admin=True)
    with pytest.raises(error, match=text):
        reload(service, *models)
    assert service.asked == []


def test_a_config_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="expected model_config_list"):
        reload(ServiceDouble(ctr(), admin=True), custom_model_config={})


def test_every_method_of_both_services_is_there() -> None:
    from headrace.frontends.tfserving.grpc import grpc_methods

    wanted = {
        f"/{name}/{method.name}"
        for name in ("tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")
        for method in protos.POOL.FindServiceByName(name).methods
    }
    assert {one.path for one in grpc_methods(ServiceDouble(ctr()))} == wanted  # type: ignore[arg-type]
