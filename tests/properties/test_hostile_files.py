"""Whatever lies in a model's directory: readers end, quickly, in a typed error, for that model only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ConfigError, LoadError
from headrace.config import parse_model_config, parse_server_config, read_model_config, read_server_config
from headrace.ctr.files.model_files import MODEL_FILE, read_description, read_model, write_model
from headrace.lifecycle.desired_state import deduce
from headrace.lifecycle.model_listing import list_models, look
from headrace.lifecycle.warmup import WELL_KNOWN, first_recorded
from headrace.runtimes.onnx import external_names
from headrace.stream.schema import parse_schema
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK, MANIFEST_FILE, PIN_FILE
from headrace.versions.manifest import check_manifest, published, write_manifest
from headrace.versions.pins_and_holds import read_control
from tests.click_weights import FEATURES, settings_for, weights_for
from tests.models import Doubling
from tests.properties.calls import calls

MOST_CALLS = 4_000_000  # of functions; the worst file takes a million, which is half a second

HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\x00[",
    "NUL": b"\0" * 1000,
    "nested lists": b"x = " + b"[" * 100_000,
    "nested tables": b"x = " + b"{a = " * 100_000,
    "a key of many parts": b".".join([b"a"] * 200_000) + b" = 1",
    "a quoted key of many parts": b" . ".join([b'"a"'] * 80_000) + b" = 1",
    "a header of many parts": b"[" + b".".join([b"a"] * 200_000) + b"]",
    "tables below 300 others": b"".join(b"x." * 30 + b"a%d = 1\n" % i for i in range(3000)),
    "5,000 digits": b"[batching]\nmax_batch_rows = " + b"9" * 5000,
    "4,000 digits": b"[batching]\nmax_batch_rows = " + b"9" * 4000,
    "a hexadecimal of 200,000 bits": b"[batching]\nmax_batch_rows = 0x" + b"f" * 50_000,
    "a float of 400 digits": b"[batching]\nmax_wait_seconds = " + b"9" * 400,
    "infinity": b"[batching]\nmax_wait_seconds = inf",
    "1e300 seconds": b"[batching]\nmax_wait_seconds = 1e300",
    "digits": b"9" * 5000,
    "JSON nested 200,000 deep": b'{"inputs":' * 100_000 + b"[" * 100_000,
    "JSON lists": b"[" * 200_000,
    "metadata nested deep": b'{"format": 1, "files": {}, "metadata": {"a": ' + b"[" * 100_000,
    "JSON of huge numbers": b'{"format": ' + b"9" * 5000 + b', "files": {}}',
    "JSON of huge floats": b'{"format": 1e999, "files": {}, "inputs": {"x": [[1e999, -1e999]]}}',
    "JSON of wrong types": b'{"format": [], "files": 3, "settings": [], "arrays": 1, "inputs": [{"b64": 1}]}',
    "settings of huge numbers": b'{"format": 1, "settings": {"kind": "fm", "factors": ' + b"9" * 400 + b"}}",
    "a list": b"[1, 2]",
    "a text": b'"model"',
    "a number": b"3",
    **{
        f"a file called {name[:5]!r}": json.dumps(
            {"format": 1, "files": {name: {"bytes": 0, "sha256": ""}}}
        ).encode()
        for name in ("\0", "a" * 5000, "", ".", "x/y/z", "\ud800")
    },
    "a file of minus one byte": b'{"format": 1, "files": {"model.ctr": {"bytes": -1, "sha256": ""}}}',
    "a date that is none": b'{"format": 1, "files": {}, "created": "9999-99-99"}',
    "too large": b"#" * (2**24 + 1),
}

NODES: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
}


def read_settings(directory: Path) -> object:
    with suppress(OSError):  # the listing's own words, tested below
        return parse_model_config(read_model_config(directory))
    return None


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "settings": ("headrace.toml", read_settings),
    "earlier pin": (PIN_FILE, read_control),
    "control record": (CONTROL_FILE, read_control),
    "manifest": (MANIFEST_FILE, check_manifest),
    "when it was published": (MANIFEST_FILE, published),
    "recording": (WELL_KNOWN, lambda directory: first_recorded(Doubling(), directory)),
    "description": (MODEL_FILE, read_description),
    "click model": (MODEL_FILE, read_model),
    "array": ("dense.bias.npy", read_model),
    "table": ("table.linear.npy", read_model),
    "external data of ONNX": ("model.onnx", lambda directory: external_names(directory / "model.onnx")),
}


@pytest.fixture(scope="module")
def click_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("click")
    settings = settings_for("fm")
    write_model(directory, settings, FEATURES, weights_for(settings))
    return directory


@contextmanager
def copied(directory: Path) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        for file in directory.iterdir():
            os.link(file, Path(folder, file.name))
        yield Path(folder)


def ends(reader: Callable[[Path], object], directory: Path) -> None:
    def read() -> None:
        with suppress(ConfigError, LoadError):
            reader(directory)

    assert calls(read) < MOST_CALLS


@pytest.mark.parametrize("content", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_hostile_bytes_end_in_a_typed_error(click_model: Path, reader: str, content: str) -> None:
    name, read = READERS[reader]
    with copied(click_model) as directory:
        (directory / name).unlink(missing_ok=True)
        (directory / name).write_bytes(HOSTILE[content])
        ends(read, directory)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_ends_in_a_typed_error_and_is_not_waited_for(
    click_model: Path, reader: str, node: str
) -> None:
    name, read = READERS[reader]
    with copied(click_model) as directory:
        (directory / name).unlink(missing_ok=True)
        NODES[node](directory / name)
        ends(read, directory)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("node", [*NODES])
def test_what_a_manifest_lists_and_is_no_file_ends_in_a_typed_error(tmp_path: Path, node: str) -> None:
    (tmp_path / "model.onnx").touch()
    write_manifest(tmp_path)
    (tmp_path / "model.onnx").unlink()
    NODES[node](tmp_path / "model.onnx")
    with pytest.raises(LoadError):
        check_manifest(tmp_path)


@given(data=st.data())
@pytest.mark.parametrize("reader", ["manifest", "description", "click model", "array", "table"])
def test_damaged_files_end_in_a_typed_error(click_model: Path, reader: str, data: st.DataObject) -> None:
    name, read = READERS[reader]
    with copied(click_model) as directory:
        if name == MANIFEST_FILE:
            write_manifest(directory)
        content = bytearray((directory / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content)))
            content[at : at + data.draw(st.sampled_from([0, 1, 8, 100]))] = data.draw(st.binary(max_size=8))
        (directory / name).unlink()
        (directory / name).write_bytes(content)
        ends(read, directory)


TOML_PIECES = st.sampled_from([
    "[batching]", "[versions.labels]", "[[", "]", "max_batch_rows", "numbers", "policy", " = ", ".", ",",
    "{", "}", "[", "\n", '"', "'", '"""', "\\u0000", "\\ud800", "1e308", "inf", "nan", "-1", "9" * 400,
    "9" * 5000, "2000-01-01", "0x" + "f" * 4000, "true", "#", "\r", "\0", "a" * 300,
])  # fmt: skip


@given(pieces=st.lists(TOML_PIECES, max_size=30), raw=st.text(max_size=20))
def test_any_settings_are_settings_or_a_config_error(pieces: list[str], raw: str) -> None:
    for text in ("".join(pieces), "".join(pieces) + raw):
        for parse in (
            parse_model_config,
            parse_schema,
            lambda text: parse_server_config(text, "server.toml", Path("/")),
        ):
            with suppress(ConfigError):
                parse(text)


def test_a_servers_settings_are_bounded(tmp_path: Path) -> None:
    for name, content in HOSTILE.items():
        (tmp_path / name.replace("/", "")).write_bytes(content)
        with suppress(ConfigError):
            read_server_config(tmp_path / name.replace("/", ""))
    with pytest.raises(ConfigError, match="cannot be read: larger than"):
        read_server_config(Path("/dev/zero"))


# ---- One model's files never touch another model ----

PLACES = (
    "headrace.toml",
    CONTROL_FILE,
    CONTROL_LOCK,
    PIN_FILE,
    "1",
    "2",
    "1/" + MANIFEST_FILE,
    "1/model.onnx",
    "0" * 200,
)


def look_twice(root: Path) -> dict[str, tuple[list[int], str]]:
    """What is wanted after a look and another one: versions and problem, by model."""
    found = deduce(list_models(root, {}), None, lambda name: {}, look)
    found = deduce(list_models(root, {}), found, lambda name: {}, look)
    return {name: (sorted(one.wanted.versions), one.wanted.problem) for name, one in found.items()}


def two_models(root: Path) -> None:
    for name in ("bad", "good"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.onnx").write_bytes(b"x")


def put(place: Path, content: bytes | Callable[[Path], object]) -> None:
    if place.is_dir():
        place.rename(place.with_name(".aside"))
    place.unlink(missing_ok=True)
    place.write_bytes(content) if isinstance(content, bytes) else content(place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", [*HOSTILE, *NODES])
def test_one_models_files_concern_no_other(tmp_path: Path, place: str, what: str) -> None:
    two_models(tmp_path)
    put(tmp_path / "bad" / place, HOSTILE[what] if what in HOSTILE else NODES[what])
    found: dict[str, tuple[list[int], str]] = {}
    assert calls(lambda: found.update(look_twice(tmp_path))) < MOST_CALLS
    assert found["good"] == ([1], "")


@pytest.mark.parametrize("node", NODES)
def test_what_is_no_model_directory_concerns_no_model(tmp_path: Path, node: str) -> None:
    two_models(tmp_path)
    NODES[node](tmp_path / "worse")
    assert look_twice(tmp_path)["good"] == ([1], "")


DEEP = 1500


def test_directories_nested_deeper_than_python_calls_concern_no_other(tmp_path: Path) -> None:
    two_models(tmp_path)
    here = os.getcwd()
    os.chdir(tmp_path / "bad" / "1")
    try:
        for _ in range(DEEP):
            os.mkdir("a")
            os.chdir("a")
        assert look_twice(tmp_path)["good"] == ([1], "")
        for _ in range(DEEP):
            os.chdir("..")
            os.rmdir("a")
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("nested lists", "nested too deeply"),
        ("5,000 digits", "not TOML: Exceeds the limit"),
        ("a key of many parts", "names of at most 32 parts"),
        ("not UTF-8", "headrace.toml cannot be read: not UTF-8"),
        ("too large", "headrace.toml cannot be read: larger than the 524288 bytes"),
        ("pipe", "headrace.toml cannot be read: expected a file, got a pipe"),
        ("link to itself", "headrace.toml cannot be read: Too many levels of symbolic links"),
        ("1e300 seconds", "max_wait_seconds: expected seconds, 0 or more, at most 60, got 1e+300"),
        ("4,000 digits", "max_batch_rows: expected a whole number of at most 64 bits, got a number of"),
    ],
)
def test_the_models_status_says_what_is_wrong(tmp_path: Path, what: str, says: str) -> None:
    two_models(tmp_path)
    put(tmp_path / "bad" / "headrace.toml", HOSTILE[what] if what in HOSTILE else NODES[what])
    assert says in look_twice(tmp_path)["bad"][1]


def test_a_model_that_cannot_be_listed_from_the_start_is_known_with_its_problem(tmp_path: Path) -> None:
    two_models(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert look_twice(tmp_path)["loop"] == (
        [],
        "its directory cannot be listed: Too many levels of symbolic links",
    )
