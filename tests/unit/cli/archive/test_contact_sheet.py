"""A contact sheet: images by what they are, keys as harmless text, and no more bytes than it may have."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from headrace.archive.model.archive_toml import archive_config
from headrace.cli.archive.contact_sheet import Image, Tile, contact_sheet, images

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 10


class Seen(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name == "src"]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(images: dict[str, Image]) -> Seen:
    group = [Tile(key, 0.98765) for key in images]
    return Seen(contact_sheet([group], images.__getitem__, title="Duplicates"))


def test_images_are_part_of_the_page_or_linked() -> None:
    page = seen({"file": PNG, "address": "https://example/a.jpg?x=1&y=2"})
    assert page.sources == ["data:image/png;base64,iVBORw0KGgp4eHh4eHh4eHh4", "https://example/a.jpg?x=1&y=2"]
    assert "address" in page.text
    assert "0.9877" in page.text


@pytest.mark.parametrize(
    "image", [None, b"", b"<svg onload='x'/>", b"RIFF1234WAVE", "javascript:alert(1)", "file:///etc/passwd"]
)
def test_files_that_are_no_images_are_left_out(image: Image) -> None:
    page = seen({"key": image})
    assert page.sources == []
    assert "no image" in page.text


@pytest.mark.parametrize(
    ("first", "kind"),
    [(b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a", "gif"), (b"RIFF\0\0\0\0WEBPVP8", "webp"), (b"BM", "bmp")],
)
def test_images_are_known_by_their_first_bytes(first: bytes, kind: str) -> None:
    assert seen({"key": first}).sources[0].startswith(f"data:image/{kind};base64,")


def test_a_key_is_text_whatever_it_says() -> None:
    key = "\"><script>alert('x')</script><img src=x onerror=y>"
    page = seen({key: 'https://example/"onload="x', "b": PNG})
    assert "script" not in page.tags
    assert key in page.text
    assert page.sources[0] == 'https://example/"onload="x'


def test_large_groups_and_long_keys_are_cut() -> None:
    page = seen({f"{number}{'k' * 200}": PNG for number in range(30)})
    assert len(page.sources) == 24
    assert "30 images, 24 of them shown" in page.text
    assert "k" * 121 not in page.text


def test_a_page_holds_only_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.archive.contact_sheet.MOST_EMBEDDED_BYTES", 2 * len(PNG))
    assert len(seen({"a": PNG, "b": PNG, "c": PNG}).sources) == 2


def test_files_that_the_embedder_may_read_are_part_of_a_sheet(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.gif").write_bytes(b"GIF89a" + b"x" * 30)
    (tmp_path / "secret.gif").write_bytes(b"GIF89a" + b"y" * 30)
    table = {"kind": "image", "model": "none.onnx", "directory": "images", "max_bytes": 100}
    spaces = {"files": {"embedder": "eye", "content": "{key}"}, "titles": {"embedder": "minilm"}}
    config = archive_config({"embedders": {"eye": table}, "spaces": spaces}, "archive.toml", tmp_path)
    image = images(config, tmp_path, "files")
    assert image("a.gif") == b"GIF89a" + b"x" * 30
    assert image("https://example/a.gif") == "https://example/a.gif"
    assert image("data:image/gif;base64,R0lGODlh") == b"GIF89a"
    for none in ("b.gif", "../secret.gif", "/etc/passwd", "ftp://example/a.gif", "\0"):
        assert image(none) is None
    assert images(config, tmp_path, "titles")("Heat") is None
