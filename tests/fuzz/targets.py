"""What is fuzzed: by name, what makes the function that takes bytes, and the inputs that it begins with.

Every function ends without an exception, or with one that is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

LAST = "last"
"""The file, beside a target's corpus, with the input that was the last finding."""

Made = tuple[Callable[[bytes], None], Iterable[bytes]]


def _rest() -> Made:
    from tests.fuzz.front_ends import FrontEnds, rest_seeds

    front_ends = FrontEnds()
    return front_ends.rest, rest_seeds(front_ends)


def _grpc() -> Made:
    from tests.fuzz.front_ends import FrontEnds, grpc_seeds

    front_ends = FrontEnds()
    return front_ends.grpc, grpc_seeds(front_ends)


def _headers() -> Made:
    from tests.fuzz.headers import Headers

    headers = Headers()
    return headers.read, headers.seeds()


def _files() -> Made:
    from tests.fuzz.files import Files

    files = Files()
    return files.read, files.seeds()


def _trees() -> Made:
    from tests.fuzz.trees import Trees

    trees = Trees()
    return trees.read, trees.seeds()


def _stream() -> Made:
    from tests.fuzz.files import read_stream, stream_seeds

    return read_stream, stream_seeds()


def _text() -> Made:
    from tests.fuzz.text import Text

    text = Text()
    return text.read, text.seeds()


def _images() -> Made:
    from tests.fuzz.images import Images

    images = Images()
    return images.read, images.seeds()


def _settings() -> Made:
    from tests.fuzz.settings import Settings

    settings = Settings()
    return settings.read, settings.seeds()


def _access() -> Made:
    from tests.fuzz.access import Access

    access = Access()
    return access.read, access.seeds()


def _messages() -> Made:
    from tests.fuzz.messages import Messages

    messages = Messages()
    return messages.read, messages.seeds()


TARGETS: dict[str, Callable[[], Made]] = {
    "rest": _rest,
    "grpc": _grpc,
    "headers": _headers,
    "stream": _stream,
    "text": _text,
    "images": _images,
    "files": _files,
    "trees": _trees,
    "settings": _settings,
    "access": _access,
    "messages": _messages,
}
