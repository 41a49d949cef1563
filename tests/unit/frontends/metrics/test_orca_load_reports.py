"""Load reports as balancers read them."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest

from headrace.batching.capacity import LoadReport
from headrace.frontends.metrics.orca_load_reports import encoded
from tests import orca


@pytest.mark.parametrize("report", [LoadReport(0.25, 120.5, 2.0), LoadReport(1.5, 1 / 3, 1e-9)])
def test_each_form_of_a_report_has_the_same_fields(report: LoadReport) -> None:
    metadata, trailer, header = encoded(report)
    fields = {
        "application_utilization": report.load,
        "rps_fractional": report.requests_per_second,
        "eps": report.errors_per_second,
    }
    assert metadata[0] == "endpoint-load-metrics-bin"
    assert orca.parsed(metadata[1]) == fields
    assert trailer == (b"endpoint-load-metrics-bin", trailer[1])
    assert b64decode(trailer[1], validate=True) == metadata[1]
    assert header[0] == b"endpoint-load-metrics"
    form, _, content = header[1].partition(b" ")
    assert (form, json.loads(content)) == (b"JSON", pytest.approx(fields, abs=1e-6))


@pytest.mark.parametrize("value", [0.0, 1.0, 1e9])
def test_base64_needs_no_padding(value: float) -> None:
    """gRPC sends none, and Envoy decodes nothing whose padding is missing."""
    assert not encoded(LoadReport(value, value, value)).trailer[1].endswith(b"=")
