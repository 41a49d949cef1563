"""The ArchiveService behind a Gate: callers look up and change only the spaces that their keys permit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from headrace.access.caller import ASKING
from headrace.base.errors import NotFound
from headrace.frontends.archive import service
from headrace.frontends.archive.service import ArchiveService

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.lookup.space_reader import SpaceReader
    from headrace.config import Limits
    from headrace.frontends.wire.time_slicer import TimeSlicer

Rest = ParamSpec("Rest")
Found = TypeVar("Found")


class GuardedArchiveService(ArchiveService):
    """An ArchiveService that restricts callers to their spaces; the caller is that of the running task."""

    def __init__(self, archive: Archive, limits: Limits, slicer: TimeSlicer, *, is_admin: bool) -> None:
        """Serve an archive; as ``ArchiveService``."""
        super().__init__(archive, limits, slicer, is_admin=is_admin)
        self._answering, self._reader = self.answering, self.reader
        self.answering, self.reader = self._checked_answering, self._checked_reader

    def _checked_answering(self, space: str, version: int = 0) -> SpaceReader:
        return _his(self._answering, space, version)

    def _checked_reader(self, space: str, version: int = 0) -> SpaceReader:
        return _his(self._reader, space, version)

    def described(self, space: str = "") -> list[dict[str, object]]:
        """Describe a space, or all spaces that the caller may use."""
        if space:
            return _his(super().described, space)
        caller = ASKING.get()
        his = [name for name in self.archive.config.spaces if caller.spaces.match(name)]
        return [one for name in his for one in service.spaces(self.archive, name)]


def _his(
    find: Callable[Concatenate[str, Rest], Found], space: str, *args: Rest.args, **named: Rest.kwargs
) -> Found:
    """Return what ``find`` returns for a permitted space; hide the names of others if it finds nothing."""
    caller = ASKING.get()
    caller.check_space(space)
    try:
        return find(space, *args, **named)
    except NotFound as error:
        raise (error if caller.spaces.everything else error.without_others()) from None
