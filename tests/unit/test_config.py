"""Settings: what is accepted, and what is said about what is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from headrace.base.errors import ConfigError
from headrace.config import (
    BatchingPolicy,
    CachePolicy,
    InputSource,
    Limits,
    ModelConfig,
    ObjectivePolicy,
    ServerConfig,
    SignatureConfig,
    Tls,
    VersionPolicy,
    WarmUpPolicy,
    parse_model_config,
    parse_server_config,
    read_server_config,
    with_flags,
)

BASE = Path("/srv/headrace")

FULL_MODEL = """
isolate = true

[versions]
policy = "specific"
numbers = [3, 5]
transition = "resource"
load_attempts = 2
load_retry_seconds = 10
load_timeout_seconds = 30.0
max_age_seconds = 3600
labels = { stable = 3, canary = 5 }

[batching]
enabled = true
max_batch_rows = 64
max_batch_seconds = 0.02
max_wait_seconds = 0.001
allowed_batch_rows = [1, 8, 64]
instances = 2
max_queue_rows = 1000
inline_seconds = 0.0001
threads_per_instance = 1
pad_variable_length = false
max_streams = 8

[warm_up]
enabled = true
requests = ["warm_up.jsonl"]
max_requests = 10
probe = false
must_answer = false

[runtime]
kind = "sklearn"
trusted = ["numpy.dtype"]
options = { columns = true, depth = 3, rate = 0.5, name = "x" }

[signature]
kind = "classify"
scores = "probabilities"
labels = ["no", "yes"]
top = 1

[image]
size = [224, 200]
fit = "crop"
resize = 256
filter = "bilinear"
white = 255
mean = [127, 127, 127]
std = [128, 128, 128]
layout = "NHWC"
channels = "BGR"
name = "photo"
input = "pixels"
formats = ["JPEG"]
max_bytes = 1000000
max_pixels = 1000000
max_call_pixels = 5000000

[default]
values = { probabilities = [0.5, 0.5], name = "none" }
after_seconds = 0.02

[inputs.image]
space = "images"
key = "item"
key_dtype = "int64"
max_age_seconds = 3600
default = 0.5
answer = true

[objective]
latency_seconds = 0.02
target = 0.99
window_seconds = 600.0

[cache]
size_bytes = 1000000
seconds = 60

[isolation]
timeout_seconds = 5
memory_bytes = 1000000000
shared_bytes = 1000000000
"""


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ({"latency_seconds": -1.0}, "latency_seconds"),
        ({"latency_seconds": 1e9}, "latency_seconds"),
        ({"target": 1.0}, "target"),
        ({"target": 0.0}, "target"),
        ({"target": float("nan")}, "target"),
        ({"window_seconds": 0.0}, "window_seconds"),
    ],
)
def test_an_objective_that_cannot_be_is_an_error(policy: dict[str, float], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"objective\.{key}: expected "):
        ObjectivePolicy(**policy)


def test_an_empty_file_is_the_defaults() -> None:
    assert parse_model_config("") == ModelConfig()
    assert parse_server_config("", "server.toml", BASE) == ServerConfig()


def test_every_setting_of_a_model_can_be_set() -> None:
    config = parse_model_config(FULL_MODEL)
    assert config.versions.labels == {"stable": 3, "canary": 5}
    assert config.versions.load_retry_seconds == 10.0
    assert config.batching.allowed_batch_rows == (1, 8, 64)
    assert config.runtime.options == {"columns": True, "depth": 3, "rate": 0.5, "name": "x"}
    assert config.signature.labels == ("no", "yes")
    assert config.default.values == {"probabilities": [0.5, 0.5], "name": "none"}
    assert config.inputs["image"].default == 0.5
    sections = {name: getattr(config, name) for name in config.__struct_fields__}
    sections["inputs"] = config.inputs["image"]
    assert sections.pop("isolate") is True
    for section, settings in sections.items():
        fields = settings.__struct_fields__
        assert [name for name in fields if not re.search(rf"(?m)^{name} = ", FULL_MODEL)] in (
            [],
            ["count"],  # of the policy `latest`
            ["classes", "labels_file"],  # instead of labels
            ["model"],  # instead of values
            ["column"],  # of tables only
            ["instance_processes"],  # instead of instances
        ), section


WRONG_MODELS = {
    '[cache]\nsize_bytes = 100000\n[inputs.image]\nspace = "images"\nkey = "url"': (
        "headrace.toml: cache.seconds: expected more than 0 with [inputs], because values from the archive "
        "change while a version is loaded, got 0.0"
    ),
    "x = ": "headrace.toml: not TOML: ",
    "[batch]": "headrace.toml: batch: unknown setting; did you mean batching?",
    "[zzz]": (
        "headrace.toml: zzz: unknown setting; known: versions, batching, warm_up, runtime, signature, "
        "image, default, inputs, cache, objective, isolate, isolation"
    ),
    '[default]\nmodel = "m"\nvalues = { y = 1 }': (
        "headrace.toml: default.model: expected either values or a model's name, got 'both'"
    ),
    '[default]\nmodel = "../x"': (
        "headrace.toml: default.model: expected a model's name: a letter or digit, then up to 127 letters, "
        "digits, dots, _ and -, got '../x'"
    ),
    "[default]\nafter_seconds = 1": (
        "headrace.toml: default.values: expected values, or a model's name, with after_seconds, got 'neither'"
    ),
    "[batching]\nmax_batch_row = 8": (
        "headrace.toml: batching.max_batch_row: unknown setting; did you mean max_batch_rows?"
    ),
    "[batching]\nmax_batch_rows = 0": "batching.max_batch_rows: expected a whole number, 1 or more, got 0",
    "[[a]]\nb = [0x8000000000000000]": (
        "headrace.toml: a.0.b.0: expected a whole number of at most 64 bits, got 9223372036854775808"
    ),
    "[batching]\ninstance_processes = 0": (
        "batching.instance_processes: expected a whole number from 1 to 256; leave it out for instances in "
        "threads, got 0"
    ),
    "[batching]\ninstance_processes = 257": "expected a whole number from 1 to 256; ",
    "[batching]\ninstance_processes = 2\ninstances = 4": (
        "batching.instance_processes: expected either processes or threads: leave it out, or instances = 4, "
        "got 2"
    ),
    "isolate = false\n[batching]\ninstance_processes = 2": (
        "isolate: expected true, or nothing, with batching.instance_processes, got False"
    ),
    "[batching]\nmax_batch_rows = '8'": "batching.max_batch_rows: expected `int`, got `str`",
    "[batching]\nmax_batch_rows = true": "batching.max_batch_rows: expected `int`, got `bool`",
    "[batching]\nmax_batch_seconds = 0": "batching.max_batch_seconds: expected seconds, more than 0, got 0",
    "[batching]\nmax_wait_seconds = nan": "batching.max_wait_seconds: expected seconds, 0 or more, got nan",
    "[batching]\ninline_seconds = -1": "batching.inline_seconds: expected seconds, 0 or more, got -1",
    "[batching]\nallowed_batch_rows = [8, 1, 256]": (
        "batching.allowed_batch_rows: expected ascending sizes, the last one max_batch_rows = 256, "
        "got [8, 1, 256]"
    ),
    "[batching]\nallowed_batch_rows = [1, 8]": "the last one max_batch_rows = 256, got [1, 8]",
    "[versions]\npolicy = 'newest'": (
        "versions.policy: expected one of 'latest', 'all', 'specific', got 'newest'"
    ),
    "[versions]\npolicy = 'specific'": (
        'versions.numbers: expected numbers exactly when policy = "specific", got []'
    ),
    "[versions]\nnumbers = [1]": 'versions.numbers: expected numbers exactly when policy = "specific"',
    "[versions]\ncount = 0": "versions.count: expected a whole number, 1 or more, got 0",
    "[versions.labels]\n'a-b' = 1": "versions.labels: expected names of letters, digits and _, got 'a-b'",
    "[versions.labels]\nstable = -1": "versions.labels.stable: expected a whole number, 0 or more, got -1",
    "[warm_up]\nrequests = ['../x']": "warm_up.requests: expected file names below",
    "[runtime]\noptions = { x = [1] }": "runtime.options[...]: expected `bool | int | float | str`, got a",
    "[runtime]\nkind = 'pickle'": "runtime.kind: expected one of 'onnx', 'sklearn', 'lightgbm', 'xgboost', ",
    "[signature]\nclasses = 'c'\nlabels = ['a']": "signature.labels: expected either classes (an output) or",
    "batching = 3": "headrace.toml: batching: expected a table, got `int`",
}


@pytest.mark.parametrize("text", WRONG_MODELS)
def test_a_wrong_setting_of_a_model_names_file_key_and_way_out(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(WRONG_MODELS[text])) as caught:
        parse_model_config(text)
    assert caught.value.message.startswith("headrace.toml: ")


def test_overrides_win_key_by_key() -> None:
    config = parse_model_config(
        "[batching]\nmax_batch_rows = 8\ninstances = 2", {"batching": {"max_batch_rows": 16}}
    )
    assert (config.batching.max_batch_rows, config.batching.instances) == (16, 2)


def test_in_process_a_policy_checks_itself_with_the_same_words() -> None:
    with pytest.raises(
        ConfigError, match=r"^batching\.max_batch_rows: expected a whole number, 1 or more, got '8'$"
    ):
        BatchingPolicy(max_batch_rows="8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^versions\.policy: expected one of "):
        VersionPolicy(policy="newest")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^warm_up\.max_requests: "):
        WarmUpPolicy(max_requests=-1)
    with pytest.raises(ConfigError, match=r"^signature\.kind: "):
        SignatureConfig(kind="guess")  # type: ignore[arg-type]


def test_settings_cannot_be_changed_once_made() -> None:
    with pytest.raises(AttributeError):
        BatchingPolicy().max_batch_rows = 3  # type: ignore[misc]


# ---- The server's ----

WRONG_SERVERS = {
    "http_port = 65536": "http_port: expected a whole number, 0 to 65535, got 65536",
    "grpc_server = 'go'": "grpc_server: expected one of 'h2corn', 'grpcio', got 'go'",
    "host = ''": "host: expected an address or a host name, got ''",
    "poll_seconds = -1": "poll_seconds: expected seconds, 0 or more, got -1",
    "log_level = 'loud'": "log_level: expected one of 'debug', 'info', 'warning', 'error', got 'loud'",
    "[limits]\nmax_inflight_bytes = 5": "limits.max_inflight_bytes: expected at least max_message_bytes = 67",
    "[tls]\ncertificate = 3": "tls.certificate: expected `str`, got `int`",
    "[tls]\ncert = 'a.pem'": "tls.cert: unknown setting; known: certificate, key, client_ca",
    "[limit]": "limit: unknown setting; did you mean limits?",
    "models = 3": "models: expected one table a model, got 3",
    "[models]\nctr = 3": "models.ctr: expected a table, got 3",
    "[models.'a/b']": "models.a/b: expected a model's name",
    "[models.ctr]\npath = 3": "models.ctr.path: expected a directory, got 3",
    '[models.ctr]\npath = "a\\u0000b"': "models.ctr.path: expected a directory, got 'a\\x00b'",
    "[models.ctr.default]\nmodel = 'ctr'": (
        "server.toml: [models.ctr]: default.model: expected the name of another model, got 'ctr'"
    ),
    "[models.ctr.batching]\nmax_rows = 3": "[models.ctr]: batching.max_rows: unknown setting; did you mean",
}


@pytest.mark.parametrize("text", WRONG_SERVERS)
def test_a_wrong_setting_of_the_server_names_file_key_and_way_out(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(WRONG_SERVERS[text])) as caught:
        parse_server_config(text, "server.toml", BASE)
    assert caught.value.message.startswith("server.toml: ")


def test_models_can_lie_elsewhere_and_be_set_from_the_servers_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text("http_port = 0\n[models.ctr]\npath = 'ctr'\n[models.ctr.batching]\ninstances = 2\n")
    config = read_server_config(file)
    assert config.http_port == 0
    assert config.model("ctr").path == tmp_path / "ctr"
    assert parse_model_config("", config.model("ctr").overrides).batching.instances == 2
    assert config.model("other").path is None
    assert config.model("other").overrides == {}


def test_files_of_tls_lie_beside_the_servers_file_and_options_win_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text("[tls]\ncertificate = 'a.pem'\nkey = 'a.key'\n")
    config = with_flags(read_server_config(file), **{"tls.key": Path("b.key")})
    assert config.tls == Tls(certificate=tmp_path / "a.pem", key=Path("b.key"))
    assert config.tls.wanted
    assert not ServerConfig().tls.wanted


@pytest.mark.parametrize(
    ("given", "missing"),
    [(("certificate",), "key"), (("key",), "certificate"), (("client_ca",), "certificate")],
)
def test_half_of_what_tls_needs_is_an_error_that_says_what_else(given: tuple[str, ...], missing: str) -> None:
    tls = Tls(**dict.fromkeys(given, Path("a.pem")))
    with pytest.raises(ConfigError, match=rf"^tls\.{missing}: expected a file.*set --tls-{missing} FILE"):
        assert tls.wanted


def test_a_file_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_server_config(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_server_config(tmp_path / "binary.toml")


def test_flags_win_over_the_file_and_are_checked() -> None:
    config = with_flags(ServerConfig(http_port=1), http_port=2, host=None)
    assert (config.http_port, config.host) == (2, "127.0.0.1")
    with pytest.raises(ConfigError, match=r"^grpc_port: "):
        with_flags(config, grpc_port=-1)


def test_settings_survive_a_round_trip_through_json() -> None:
    config = parse_model_config(FULL_MODEL)
    assert msgspec.json.decode(msgspec.json.encode(config), type=ModelConfig) == config


# ---- Numbers ----

NO_NUMBERS = (
    -1,
    -0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    2**63,
    10**400,
    -(10**5000),
    1e300,
    True,
    "1",
)
SECTION_STRUCTS = (BatchingPolicy, VersionPolicy, WarmUpPolicy, Limits, ServerConfig)


@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda number: str(type(number).__name__))
@pytest.mark.parametrize(
    ("section", "setting"),
    [
        (section, name)
        for section in SECTION_STRUCTS
        for name, kind in get_type_hints(section).items()
        if kind in (int, float, float | None)
    ],
)
def test_a_number_that_nobody_can_mean_is_refused(
    section: type[msgspec.Struct], setting: str, number: object
) -> None:
    with pytest.raises(ConfigError, match=rf"{setting}: expected .*, got ") as caught:
        section(**{setting: number})
    assert len(caught.value.message) < 200


def test_every_number_in_lists_and_tables_is_checked_too() -> None:
    for number in (-1, 2**63, 10**5000):
        with pytest.raises(ConfigError, match=r"^versions\.numbers: "):
            VersionPolicy(policy="specific", numbers=(number,))
        with pytest.raises(ConfigError, match=r"^versions\.labels\.stable: "):
            VersionPolicy(labels={"stable": number})
        with pytest.raises(ConfigError, match=r"^batching\.allowed_batch_rows: "):
            BatchingPolicy(allowed_batch_rows=(number,), max_batch_rows=256)


def test_answers_made_of_what_changes_are_not_repeated_for_ever() -> None:
    inputs = {"image": InputSource(space="images", key="url")}
    with pytest.raises(ConfigError, match=r"cache\.seconds: expected more than 0 with \[inputs\]"):
        ModelConfig(inputs=inputs, cache=CachePolicy(size_bytes=2**20))
    assert ModelConfig(inputs=inputs, cache=CachePolicy(size_bytes=2**20, seconds=10)).inputs == inputs


def test_what_is_too_much_is_told_with_the_most_that_may_be() -> None:
    with pytest.raises(ConfigError, match=r"expected seconds, 0 or more, at most 60, got 1e\+300$"):
        BatchingPolicy(max_wait_seconds=1e300)
    with pytest.raises(ConfigError, match=r"expected a whole number, 1 to 1000000, got 2000000$"):
        VersionPolicy(load_attempts=2_000_000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[tracing]\nendpoint = "collector:4317"', "tracing.endpoint: expected an address such as http"),
        ('[tracing]\nendpoint = "http://"', "tracing.endpoint: expected an address"),
        ('[tracing]\nendpoint = "http://x:99999"', "tracing.endpoint: expected an address"),
        ("[tracing]\nsample_rate = 1.5", "tracing.sample_rate: expected a number from 0 to 1, got 1.5"),
        ("[tracing]\nmax_traces_per_second = 0", "max_traces_per_second: expected a whole number, 1 or more"),
        ('[tracing]\nservice_name = ""', "tracing.service_name: expected a name"),
        ('[tracing]\nprotocol = "zipkin"', "tracing.protocol: expected one of 'grpc', 'http'"),
        ('[cors]\norigins = ["https://a.example/"]', "cors.origins: expected origins as"),
        ('[cors]\norigins = ["https://A.example"]', "cors.origins: expected origins as"),
        (
            '[cors]\norigins = ["https://a.example:443"]',
            "cors.origins: expected origins as browsers send them",
        ),
        ('[cors]\norigins = ["https://a.example:99999"]', "cors.origins: expected origins as"),
        (
            '[cors]\norigins = ["*", "https://a.example"]',
            "cors.origins: expected origins as browsers send them",
        ),
        ('[cors]\norigins = ["null"]', "cors.origins: expected origins as"),
        ('[audit]\nfile = "."', "audit.file: expected a file"),
        ("[access_log]\nsample = -0.1", "access_log.sample: expected a number from 0 to 1"),
        ("[access_log]\nslow_seconds = -1", "access_log.slow_seconds: expected seconds, 0 or more"),
        ('[access_log]\npath = "."', "access_log.path: expected a file"),
        ('[access_log]\nfile = "x"', "access_log.file: unknown setting"),
    ],
)
def test_what_is_told_of_calls_is_checked(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server_config(text, "server.toml", BASE)
    assert told in caught.value.message


def test_an_access_log_lies_beside_the_settings_or_is_standard_output() -> None:
    found = parse_server_config('[access_log]\npath = "a/b.log"', "x", BASE).access_log.path
    assert found == BASE / "a/b.log"
    assert parse_server_config('[access_log]\npath = "-"', "x", BASE).access_log.path == Path("-")
    assert parse_server_config('[audit]\nfile = "b.log"', "x", BASE).audit.file == BASE / "b.log"
    flagged = with_flags(ServerConfig(), **{"access_log.path": Path("c.log"), "tracing.enabled": True})
    assert flagged.access_log.path == Path("c.log")
    assert flagged.tracing.is_on


@pytest.mark.parametrize(
    ("drain", "lead", "first_answer", "answer"),
    [(30, 2, 2, 26), (30, 0, 0, 30), (8, 6, 1, 3), (100, 10, 5, 85), (0, 2, 0, 0)],
)
def test_the_drain_is_for_the_lead_and_for_who_has_asked_nothing_and_the_rest_for_answers(
    drain: float, lead: float, first_answer: float, answer: float
) -> None:
    config = ServerConfig(drain_seconds=drain, drain_lead_seconds=lead)
    assert (config.first_answer_seconds, config.answer_seconds) == (first_answer, answer)
