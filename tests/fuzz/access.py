"""What lets callers and versions in, under fuzzing: keys, tokens, what is shown of them, and signatures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from headrace.access.gate import Gate
from headrace.access.keys import as_keys, draw, parse_keys, read_keys
from headrace.access.permissions import PREDICT
from headrace.access.tokens import Tokens, read_token_keys
from headrace.base.errors import HeadraceError
from headrace.versions.layout import MANIFEST_FILE
from headrace.versions.manifest import write_manifest
from headrace.versions.signatures import SIGNATURE_FILE, Verifier, new_keys, signer
from tests.unit.access.tokens_of_tests import claims, jwks, settings, signed, token

_MODEL, _VERSION = "ranking", 3


class Access:
    """A gate with a key and an identity provider, and a signed version."""

    def __init__(self) -> None:
        """Make them."""
        self._place = tempfile.TemporaryDirectory()
        place = Path(self._place.name)
        self._jwks = jwks(place / "jwks.json")
        key = draw()
        self._keys = f'[[key]]\nname = "ann"\nid = "{key.id}"\ndigest = "{key.digest}"\nverbs = ["predict"]\n'
        self._gate = Gate(as_keys(parse_keys(self._keys, "keys.toml")))
        self._gate.tokens = Tokens(settings(self._jwks), read_token_keys(self._jwks))
        self._shown = (b"Bearer " + key.text.encode(), b"Bearer " + token(), key.text.encode())
        self._version = place / "1"
        self._version.mkdir()
        (self._version / "model.onnx").write_bytes(b"weights")
        write_manifest(self._version)
        private, self._trusted = place / "private.pem", place / "private.pem.pub"
        new_keys(private)
        signer(private)(self._version, _MODEL, _VERSION)
        self._readers: list[tuple[Callable[[bytes], object], list[bytes]]] = [
            (lambda data: read_keys(self._file(data)), [self._keys.encode()]),
            (lambda data: read_token_keys(self._file(data)), [self._jwks.read_bytes()]),
            (lambda data: self._admit(b"authorization", data), [*self._shown[:2]]),
            (lambda data: self._admit(b"x-api-key", data), [self._shown[2]]),
            (self._signed, [b'{"alg": "EdDSA", "kid": "EdDSA"}\n' + one for one in _claims()]),
            (self._signature, [(self._version / SIGNATURE_FILE).read_bytes()]),
            (lambda data: Verifier(self._file(data)), [self._trusted.read_bytes()]),
        ]
        self._verifier = Verifier(self._trusted)

    def read(self, data: bytes) -> None:
        """The first byte says what the rest is."""
        if data:
            reader, _ = self._readers[data[0] % len(self._readers)]
            with suppress(HeadraceError):
                reader(data[1:])

    def seeds(self) -> Iterator[bytes]:
        """Each as it is."""
        for number, (_, good) in enumerate(self._readers):
            for one in good:
                yield bytes((number,)) + one

    def _file(self, data: bytes) -> Path:
        file = Path(self._place.name, "given")
        file.write_bytes(data)
        return file

    def _admit(self, name: bytes, value: bytes) -> None:
        self._gate.leave(self._gate.admit([(name, value)], PREDICT))

    def _signed(self, data: bytes) -> None:
        """A token that the provider has signed, whatever its header and its claims are."""
        header, _, said = data.partition(b"\n")
        self._admit(b"authorization", b"Bearer " + signed(header, said))

    def _signature(self, data: bytes) -> None:
        (self._version / SIGNATURE_FILE).write_bytes(data)
        manifest = (self._version / MANIFEST_FILE).read_bytes()
        self._verifier.check(self._version, _MODEL, _VERSION, manifest)


def _claims() -> Iterator[bytes]:
    more = {"scope": "headrace:predict", "headrace_models": ["a*"], "headrace_spaces": ["*"]}
    for one in (claims(), claims(headrace_verbs=None, nbf=0, iat=0, **more)):
        yield json.dumps(one).encode()
