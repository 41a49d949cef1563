"""The section [signature]: what fits together."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.config import parse_model_config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("top = 1", "signature.labels: expected the classes' names with top = 1, or labels_file"),
        ("top = -1", "signature.top: expected a whole number, 0 or more"),
        ("labels = ['a']\nlabels_file = 'labels.txt'", "signature.labels_file: expected either labels"),
        ("classes = 'c'\nlabels_file = 'labels.txt'", "signature.labels: expected either classes"),
        (
            "labels_file = '../labels.txt'",
            "signature.labels_file: expected a file in the version's directory",
        ),
        ("labels_file = '/etc/passwd'", "signature.labels_file: expected a file in the version's directory"),
        ("labels = ['a']\ntop = 1\n[batching]\nenabled = false", "batching.enabled: expected true with"),
    ],
)
def test_invalid_settings_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_model_config(f"[signature]\n{text}")


def test_labels_come_from_the_settings_or_from_a_file() -> None:
    assert parse_model_config("[signature]\nlabels = ['a', 'b']\ntop = 2").signature.top == 2
    assert parse_model_config("[signature]\nlabels_file = 'names/a.txt'\ntop = 2").signature.top == 2
