"""Models whose inputs come from an archive: what they take and see, and that nothing keeps them from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.reports import InputTotals
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.catalog import with_default, without
from headrace.archive.model.columns import Column
from headrace.archive.model_inputs.lookup_servable import LookupServable
from headrace.base.errors import InvalidRows, NotFound, NotLoadable, Unavailable
from headrace.base.tensors import STRING, Array, Tensors
from headrace.batching.batch_queue import declared_outputs
from headrace.config import BatchingPolicy, InputSource, ModelConfig
from headrace.lifecycle.warmup import _zeros
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.serving.engine import Engine
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.settings import MemoryQueue, MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from tests.unit.archive.filling_parts import LengthEmbedder
from tests.waiting import until

FLOAT = np.dtype(np.float32)
IMAGES = {"embedder": "lengths", "dtype": "float16"}
USERS = {"columns": {"age": "int64"}}


class Echo:
    """Answers what it was given; ``plain`` takes one number, and nothing from an archive."""

    platform = "test"

    def __init__(self) -> None:
        inputs = (
            TensorSpec("bid", FLOAT, ()),
            TensorSpec("image", FLOAT, (4,)),
            TensorSpec("age", FLOAT, (), context=True),
        )
        outputs = (TensorSpec("vector", FLOAT, (4,)), TensorSpec("years", FLOAT, ()))
        plain = Signature("plain", (TensorSpec("bid", FLOAT, ()),), (TensorSpec("bid", FLOAT, ()),))
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, inputs, outputs),
            "plain": plain,
        }
        self.is_closed = False

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        if signature == "plain":
            return {"bid": inputs["bid"]}
        assert set(inputs) == {"bid", "image", "age"}
        return {"vector": inputs["image"], "years": inputs["age"] + inputs["bid"]}

    def close(self) -> None:
        self.is_closed = True


IMAGE = InputSource(space="images", key="url", answer=True)
AGE = InputSource(space="users", column="age", key="user")


def config_of(**sources: InputSource) -> ModelConfig:
    return ModelConfig(inputs=sources or {"image": IMAGE, "age": AGE})


class Elsewhere(InMemoryStore):
    """A store as if on another machine, which can be held up."""

    is_local = False

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.goes_on = threading.Event()
        self.goes_on.set()

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        self.goes_on.wait(120)
        return super().get_many(partition, keys, missing)


def archive_of(
    store: InMemoryStore, images: Mapping[str, object] = IMAGES, users: Mapping[str, object] = USERS
) -> Archive:
    table = {
        "store": {"kind": "memory"},
        "queue": {"kind": "memory"},
        "spaces": {"images": images},
        "tables": {"users": users},
    }
    config = archive_config(table, "archive.toml", Path())
    return Archive(config, store, MemoryMessages(MemoryQueue()), lambda _: LengthEmbedder())


@pytest.fixture
def archive() -> Iterator[Archive]:
    with archive_of(InMemoryStore(MemoryStore())) as opened:
        opened.put("images", ["a", "b"], np.arange(8, dtype=np.float32).reshape(2, 4))
        opened.put_rows("users", ["7"], {"age": [41]})
        yield opened


def featured(archive: Archive, config: ModelConfig | None = None, **versions: int) -> LookupServable:
    return LookupServable(Echo(), archive, "m", config or config_of(), versions)


def asked(urls: list[str], users: list[str]) -> Tensors:
    return {
        "bid": np.zeros(len(urls), np.float32),
        "url": np.array([url.encode() for url in urls], STRING),
        "user": np.array([user.encode() for user in users], STRING),
    }


def test_keys_are_the_inputs_in_place_of_what_they_stand_for(archive: Archive) -> None:
    signature = featured(archive).signatures[DEFAULT_SIGNATURE]
    assert [str(spec) for spec in signature.inputs] == [
        "bid FP32 [rows]",
        "url BYTES [rows]",
        "user BYTES [rows]",
    ]
    assert [spec.context for spec in signature.inputs] == [False, False, True]
    assert signature.output_names == ("vector", "years", "image.written", "image.version")
    assert signature.check({"bid": [1.0], "url": [None], "user": ["7"]}).columns[1][0] == b""


def test_each_row_gets_its_own_values(archive: Archive) -> None:
    model = featured(archive)
    outputs = model.predict(asked(["b", "new", "a", "b", ""], ["7", "7", "none", "7", ""]))
    assert outputs["vector"].tolist() == [[4, 5, 6, 7], [0] * 4, [0, 1, 2, 3], [4, 5, 6, 7], [0] * 4]
    assert outputs["years"].tolist() == [41, 41, 0, 41, 0]
    assert outputs["image.version"].tolist() == [1] * 5
    assert (outputs["image.written"] != 0).tolist() == [True, False, True, True, False]
    totals = archive.of_models["m", "image"]
    assert (totals.keys, totals.found, totals.too_old) == (4, 3, 0)
    assert archive.counts["images"].keys == 3  # "b" once
    until(lambda: archive.queue.depth().messages == 1)


def test_rows_that_fill_a_batch_up_are_not_counted(archive: Archive) -> None:
    policy = BatchingPolicy(max_batch_rows=8, allowed_batch_rows=(8,))
    with Engine.in_thread(objects={"m": featured(archive)}, batching=policy) as engine:
        before = vars_of(archive.of_models["m", "image"])  # of warming up
        answer = engine.predict_blocking("m", asked(["b", "none", "a"], ["7", "7", ""]))
        assert answer["vector"].tolist() == [[4, 5, 6, 7], [0] * 4, [0, 1, 2, 3]]
    assert before == (0, 0, 0)
    assert vars_of(archive.of_models["m", "image"]) == (3, 2, 0)
    assert vars_of(archive.of_models["m", "age"]) == (2, 2, 0)


def vars_of(totals: InputTotals) -> tuple[int, int, int]:
    return totals.keys, totals.found, totals.too_old


class Broken(Echo):
    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        raise ValueError("it cannot")


def test_rows_of_a_batch_that_fails_are_not_counted_as_often_as_they_are_tried(archive: Archive) -> None:
    model = LookupServable(Broken(), archive, "m", config_of(), {})
    with pytest.raises(ValueError, match="it cannot"):
        model.predict(asked(["a", "b"], ["7", "7"]))
    assert vars_of(archive.of_models["m", "image"]) == (0, 0, 0)


def test_lookups_are_in_the_answer_also_if_they_are_no_outputs(archive: Archive) -> None:
    model = featured(archive)
    signature = model.signatures[DEFAULT_SIGNATURE]
    declared = model.declared_outputs(signature, model.predict(asked(["a"], ["7"])), 1)
    assert {"image.written", "age.written", "age.version"} <= set(declared)
    assert "age.written" not in signature.output_names
    assert "age.written" not in declared_outputs(signature, declared, 1)


def test_a_signature_without_looked_up_inputs_is_unchanged(archive: Archive) -> None:
    model = featured(archive)
    assert model.signatures["plain"].input_names == ("bid",)
    outputs = model.predict({"bid": np.ones(1, np.float32)}, "plain")
    assert model.declared_outputs(model.signatures["plain"], outputs, 1) == outputs


def test_warming_up_asks_for_no_keys() -> None:
    sources = {
        "image": IMAGE,
        "age": InputSource(space="users", column="age", key="user", key_dtype="int64"),
    }
    with archive_of(InMemoryStore(MemoryStore())) as archive:
        model = featured(archive, config_of(**sources))
        inputs = _zeros(model.signatures[DEFAULT_SIGNATURE], 8)
        assert inputs is not None
        assert inputs["user"].tolist() == [-1] * 8
        assert model.predict(inputs)["vector"].shape == (8, 4)
        assert archive.counts["images"].keys == archive.counts["users"].keys == 0
        assert archive.of_models["m", "age"].keys == 0


def test_a_key_may_be_an_input_of_the_model_as_well(archive: Archive) -> None:
    class Named(Echo):
        def __init__(self) -> None:
            super().__init__()
            inputs = (TensorSpec("image", FLOAT, (4,)), TensorSpec("url", STRING, ()))
            outputs = (TensorSpec("url", STRING, ()),)
            self.signatures = {DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, inputs, outputs)}

        def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
            assert inputs["image"][0, 1] == 1
            return {"url": inputs["url"]}

    model = LookupServable(Named(), archive, "m", config_of(image=IMAGE), {})
    assert model.signatures[DEFAULT_SIGNATURE].input_names == ("url",)
    assert model.predict({"url": np.array([b"a"], STRING)})["url"].tolist() == [b"a"]


def test_a_version_of_the_model_asks_the_versions_that_it_was_trained_on(archive: Archive) -> None:
    old, bare = featured(archive, images=1), featured(archive)
    archive.add_version("images", LengthEmbedder("lengths-2"))
    new = featured(archive, images=2)
    archive.put("images", ["a"], np.full((1, 4), 9), version=2)
    request = asked(["a"], ["7"])
    assert old.predict(request)["vector"].tolist() == [[0, 1, 2, 3]]
    assert new.predict(request)["vector"].tolist() == [[9, 9, 9, 9]]
    assert new.predict(request)["image.version"].tolist() == [2]
    assert bare.predict(request)["image.version"].tolist() == [1]


def test_a_version_that_is_gone_is_an_error_that_says_so(archive: Archive) -> None:
    with pytest.raises(NotLoadable, match=r"no version 7 of the space 'images'.* was trained on version 7"):
        featured(archive, images=7)


def test_a_table_without_columns_yet_is_waited_for() -> None:
    with (
        archive_of(InMemoryStore(MemoryStore()), users={}) as archive,
        pytest.raises(Unavailable, match="has no columns yet"),
    ):
        featured(archive)


def test_a_new_default_is_asked_if_it_fits_the_model(caplog: pytest.LogCaptureFixture) -> None:
    with archive_of(InMemoryStore(MemoryStore())) as archive:
        model = featured(archive)
        archive.put_rows("users", ["7"], {"age": [41]})
        of_texts = archive.table_version("users", [Column(name="age", dtype="text")])
        archive.catalog.change("users", lambda record: with_default(record, of_texts.number, 1.0))
        until(lambda: archive.reader("users").version.number == of_texts.number)
        for _ in range(3):
            assert model.predict(asked(["a"], ["7"]))["years"].tolist() == [41]
        assert [one.args for one in caplog.records if "keeps using version" in one.msg] == [
            ("m", 1, "users", "inputs.age: expected FP32, as the model takes it, got BYTES from version 2 "
             "of the space 'users'"),
        ]  # fmt: skip
        of_more = archive.table_version(
            "users", [Column(name="age", dtype="int64"), Column(name="name", dtype="text")]
        )
        archive.put_rows("users", ["7"], {"age": [42], "name": ["Ann"]}, version=of_more.number)
        archive.catalog.change("users", lambda record: with_default(record, of_more.number, 1.0))
        until(lambda: archive.reader("users").version.number == of_more.number)
        assert model.predict(asked(["a"], ["7"]))["years"].tolist() == [42]
    outputs = model.predict(asked(["a"], ["8"]))  # the archive is closed
    assert (outputs["age.version"].tolist(), outputs["years"].tolist()) == ([of_more.number], [0])


def test_a_store_that_is_held_up_is_waited_for_no_longer_than_a_batch_may_take() -> None:
    """And when it goes on, what it gave is there for the next who asks."""
    store = Elsewhere()
    with archive_of(store) as archive:
        config = ModelConfig(inputs=config_of().inputs, batching=BatchingPolicy(max_batch_seconds=0.01))
        model = featured(archive, config)
        assert model.may_block
        archive.put("images", ["a"], np.ones((1, 4)))
        archive.reader("images").forget_all()
        store.goes_on.clear()
        assert model.predict(asked(["a"], ["7"]))["vector"].tolist() == [[0] * 4]
        store.goes_on.set()
        until(lambda: model.predict(asked(["a"], ["7"]))["vector"].tolist() == [[1] * 4])


def test_an_archive_that_is_closed_is_no_error() -> None:
    users = {"columns": {"age": {"dtype": "int64", "default": 30}}}
    with archive_of(InMemoryStore(MemoryStore()), users=users) as archive:
        archive.put("images", ["a"], np.ones((1, 4)))
        model = featured(archive)
        archive.reader("images").forget_all()
    outputs = model.predict(asked(["a", "b"], ["7", ""]))
    assert outputs["vector"].tolist() == [[0] * 4] * 2
    assert outputs["years"].tolist() == [30, 30]  # what stands for a missing value, and no zeros


def test_each_model_has_its_own_quota_of_new_keys() -> None:
    images = {**IMAGES, "max_new_keys_per_second": 0.001, "max_new_keys_burst": 1}
    with archive_of(InMemoryStore(MemoryStore()), images) as archive:
        for name in ("m", "n"):
            model = LookupServable(Echo(), archive, name, config_of(), {})
            model.predict(asked([f"{name} wants this", f"{name} wants that"], ["", ""]))
        until(lambda: archive.queue.depth().messages == 2)


def test_the_model_is_closed_with_what_stands_before_it(archive: Archive) -> None:
    model = Echo()
    LookupServable(model, archive, "m", config_of(), {}).close()
    assert model.is_closed
    assert archive.lookup("images", ["a"]).found.all()


def test_a_key_is_sent_once_only_where_all_that_it_feeds_is(archive: Archive) -> None:
    age = InputSource(space="users", column="age", key="url")
    signatures = featured(archive, config_of(image=IMAGE, age=age)).signatures
    (url,) = [spec for spec in signatures[DEFAULT_SIGNATURE].inputs if spec.name == "url"]
    assert not url.context


def test_a_number_that_a_request_leaves_out_is_no_key(archive: Archive) -> None:
    archive.put_rows("users", ["0"], {"age": [9]})
    age = InputSource(space="users", column="age", key="user", key_dtype="int64")
    model = featured(archive, config_of(image=IMAGE, age=age))
    (user,) = [spec for spec in model.signatures[DEFAULT_SIGNATURE].inputs if spec.name == "user"]
    given = {"bid": np.zeros(1, np.float32), "url": np.array([b"a"], STRING)}
    outputs = model.predict(given | {"user": np.full(1, user.absent, user.dtype)})
    assert outputs["years"].tolist() == [0]


def test_a_version_that_goes_while_it_is_served_is_no_error(archive: Archive) -> None:
    model = featured(archive, images=1)
    newer = archive.add_version("images", LengthEmbedder("lengths-2"))
    archive.catalog.change("images", lambda record: without(with_default(record, newer.number, 1.0), 1))

    def is_gone() -> bool:
        try:
            archive.reader("images", 1)
        except NotFound:
            return True
        return False

    until(is_gone)
    outputs = model.predict(asked(["a"], ["7"]))
    assert outputs["vector"].tolist() == [[0] * 4]
    assert (outputs["image.written"].tolist(), outputs["years"].tolist()) == ([0], [41])


def test_keys_that_cannot_be_are_the_errors_of_their_rows(archive: Archive) -> None:
    with pytest.raises(
        InvalidRows, match=r"url: row 1: expected a key of up to 8192 bytes of UTF-8, got 9000"
    ) as raised:
        featured(archive).predict(asked(["a", "x" * 9000, "b"], ["7", "", "7"]))
    assert list(raised.value.rows) == [1]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"pic": IMAGE}, r"inputs.pic: the model has no such input; it takes 'bid', 'image', 'age'"),
        ({"image": InputSource(space="none", key="url")}, r"no space 'none'"),
        (
            {"image": InputSource(space="users", key="url")},
            r"inputs.image.column: expected one of age, got ''",
        ),
        (
            {"image": IMAGE, "age": InputSource(space="users", column="age", key="image")},
            r"comes from the archive",
        ),
        (
            {"image": InputSource(space="images", key="bid")},
            r"inputs.image.key: expected texts, .* got bid FP32",
        ),
        (
            {"image": InputSource(space="images", key="bid", key_dtype="int64")},
            r"inputs.image.key: expected integers, as key_dtype says, got bid FP32",
        ),
        (
            {"image": IMAGE, "age": InputSource(space="users", column="age", key="url", key_dtype="int64")},
            r"inputs.age.key: expected integers, as key_dtype says, got url BYTES",
        ),
    ],
)
def test_settings_that_do_not_fit_are_said(
    archive: Archive, sources: dict[str, InputSource], said: str
) -> None:
    with pytest.raises(NotLoadable, match=said):
        featured(archive, config_of(**sources))


def test_a_batch_may_have_no_more_rows_than_a_lookup_has_keys() -> None:
    with (
        archive_of(InMemoryStore(MemoryStore()), {**IMAGES, "max_keys": 100}) as archive,
        pytest.raises(NotLoadable, match=r"max_batch_rows: expected at most 100, as spaces.images.max_keys"),
    ):
        featured(archive)
    with archive_of(InMemoryStore(MemoryStore()), {**IMAGES, "max_keys": 100}) as archive:
        featured(archive, ModelConfig(inputs=config_of().inputs, batching=BatchingPolicy(max_batch_rows=100)))


class EchoWithOwnWays(Echo):
    """One output has the name of what is said of an input; another input holds two keys a row."""

    def __init__(self, *outputs: str) -> None:
        super().__init__()
        its = self.signatures[DEFAULT_SIGNATURE]
        more = tuple(TensorSpec(name, np.dtype(np.int64), ()) for name in outputs)
        inputs = (*its.inputs, TensorSpec("both", STRING, (2,)))
        self.signatures = {DEFAULT_SIGNATURE: Signature(its.name, inputs, its.outputs + more)}


@pytest.mark.parametrize(
    ("outputs", "key", "said"),
    [
        (("image.written",), "url", "inputs.image: the model has an output 'image.written' of its own"),
        ((), "both", r"inputs.image.key: expected one value per row, got both BYTES \[rows, 2\]"),
    ],
)
def test_a_model_whose_own_inputs_and_outputs_are_in_the_way_is_refused(
    archive: Archive, outputs: tuple[str, ...], key: str, said: str
) -> None:
    config = config_of(image=InputSource(space="images", key=key))
    with pytest.raises(NotLoadable, match=said):
        LookupServable(EchoWithOwnWays(*outputs), archive, "m", config, {})


def test_many_threads_each_get_their_own_rows(archive: Archive) -> None:
    keys = [f"k{number}" for number in range(500)]
    archive.put("images", keys, np.repeat(np.arange(500, dtype=np.float32), 4).reshape(500, 4))
    model, wrong = featured(archive), list[Array]()

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(30):
            rows = random.integers(0, 500, 64)
            answered = model.predict(asked([keys[row] for row in rows], ["7"] * 64))["vector"][:, 0]
            if not np.array_equal(answered, rows):
                wrong.append(answered)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
