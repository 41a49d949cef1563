"""A space or a version that is not there is the same typed error at every door, and names what there is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import NotFound
from headrace.base.status_codes import codes
from headrace.frontends.archive.service import ArchiveService
from headrace.frontends.wire import protos
from tests.unit.frontends.archive.doors import SPACES, a_door, ask, error_of, post, stream

Request = protos.message("headrace.archive.v1.LookupRequest")


def in_process(service: ArchiveService, space: str, version: int) -> Any:
    return error_of(lambda: service.archive.lookup(space, ["a"], version=version))


def over_rest(service: ArchiveService, space: str, version: int) -> Any:
    return error_of(lambda: post(service, f"{space}:lookup", {"keys": ["a"], "version": version}))


def over_grpc(service: ArchiveService, space: str, version: int) -> Any:
    return error_of(lambda: ask(service, "Lookup", space=space, keys=["a"], version=version))


def over_a_stream(service: ArchiveService, space: str, version: int) -> Any:
    message = Request(space=space, keys=["a"], version=version).SerializeToString()
    (answer,) = stream(service, message)
    return SimpleNamespace(code=answer.error.code, message=answer.error.message)


DOORS = (in_process, over_rest, over_grpc, over_a_stream)


@pytest.mark.parametrize("door_of", DOORS)
@pytest.mark.parametrize(
    ("space", "version", "told"),
    [
        ("nope", 0, f"no space 'nope'; there are {', '.join(SPACES)}"),
        ("item", 0, f"no space 'item'; did you mean 'items'? There are {', '.join(SPACES)}"),
        ("items", 7, "no version 7 of the space 'items'; it has version 1"),
        ("users", 7, "no version 7 of the space 'users'; it has version 1"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(
    door_of: Callable[[ArchiveService, str, int], Any], space: str, version: int, told: str
) -> None:
    with a_door() as service:
        error = door_of(service, space, version)
    if door_of is not over_a_stream:
        assert isinstance(error, NotFound)
        assert codes(error).http == 404
    else:
        assert error.code == 5  # NOT_FOUND
    assert error.message == told
