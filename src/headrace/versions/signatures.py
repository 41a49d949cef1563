"""Signed versions: an Ed25519 signature over a version's manifest, and so over every file that it lists.

The signature covers the model's name, the version's number, and the SHA-256 of the manifest. A signed version
that is renamed, or moved to another model's directory, does not verify there. The signatures lie beside the
manifest, in ``headrace-signature.json``. There may be one for each of several keys, so that keys can be
rotated.

Needs the extra ``signing``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.base.errors import ConfigError, FailedPrecondition, LoadError, NewerFormat, needs_extra
from headrace.base.files import read_file, saying, write_file
from headrace.base.format_numbers import check_format
from headrace.versions.layout import MANIFEST_FILE, SIGNATURE_FILE
from headrace.versions.manifest import Signer, manifest_content

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FORMAT = 1
"""The format of signature files that is written; newer ones are refused."""

_LARGEST_KEY_BYTES = 2**16
_LARGEST_SIGNATURE_BYTES = 2**16
_MOST_SIGNATURES = 64
_ID_DIGITS = 16
_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----[^-]*-----END [A-Z ]+-----")
_DOMAIN = b"headrace version signature 1"


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """One signature.

    Attributes:
        key: The id of the key, as ``key_id`` returns it.
        ed25519: The signature's 64 bytes; base64 in JSON.
    """

    key: str
    ed25519: bytes


class Signatures(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a signature file.

    Attributes:
        format: The version of this format.
        model: The model that the version was signed for.
        version: The number that it was signed for.
        signatures: At most one for each key.
    """

    format: int
    model: str
    version: int
    signatures: tuple[Signed, ...]


def new_keys(file: Path) -> str:
    """Generate a key pair: the private key readable by its owner only, the public key in ``FILE.pub``.

    Args:
        file: File for the private key; must not exist.

    Returns:
        The key's id.

    Raises:
        ConfigError: ``cryptography`` is not installed.
        FailedPrecondition: A file exists, or cannot be written.
    """
    ed25519, serialization = _ed25519(), _serialization()
    private = ed25519.Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    secret = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public_file = file.with_name(f"{file.name}.pub")
    with saying(f"{file} cannot be written"):
        if public_file.exists():
            raise FailedPrecondition(f"{public_file} exists; choose another name, or remove it")
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise FailedPrecondition(f"{file} exists; choose another name, or remove it") from None
        with open(descriptor, "wb") as opened:
            opened.write(secret)
            opened.flush()
            os.fsync(descriptor)
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        write_file(public_file, private.public_key().public_bytes(pem, spki))
    return key_id(private.public_key())


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a key: the first 16 hexadecimal digits of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:_ID_DIGITS]


def signer(private_key: Path) -> Signer:
    """Return a function that signs versions with a private key, which is read once.

    Args:
        private_key: A PEM file (PKCS #8), as written by ``headrace signing-key`` and ``openssl genpkey
            -algorithm ed25519``.

    Raises:
        ConfigError: The file cannot be read or holds no such key, or ``cryptography`` is not installed.
    """
    key = _private_key(private_key)
    name = key_id(key.public_key())

    def sign(directory: Path, model: str, version: int) -> str:
        sign_version(directory, model, version, key)
        return name

    return sign


def sign_version(directory: Path, model: str, version: int, key: Ed25519PrivateKey) -> None:
    """Sign a version beside its manifest; signatures of the same version by other keys are kept.

    Args:
        directory: The version directory.
        model: The name that it will be served under.
        version: Its number.
        key: The private key.

    Raises:
        FailedPrecondition: It has no manifest, or the signature cannot be written.
        NewerFormat: The existing signatures have a newer format and would be lost.
        LoadError: The manifest cannot be read.
    """
    content = manifest_content(directory)
    if content is None:
        raise FailedPrecondition(
            f"{directory} has no {MANIFEST_FILE} to sign; publish the version again, with `headrace "
            "publish`, which writes one"
        )
    signed = Signed(key=key_id(key.public_key()), ed25519=key.sign(_message(model, version, content)))
    try:
        there = _read(directory)
    except NewerFormat:
        raise
    except LoadError:  # damaged: nothing in it is worth keeping
        there = None
    others: tuple[Signed, ...] = ()
    if there is not None and (there.model, there.version) == (model, version):
        others = tuple(one for one in there.signatures if one.key != signed.key)
    kept = (*others, signed)[-_MOST_SIGNATURES:]
    record = Signatures(format=FORMAT, model=model, version=version, signatures=kept)
    with saying(f"{SIGNATURE_FILE} cannot be written in {directory}"):
        write_file(directory / SIGNATURE_FILE, msgspec.json.format(msgspec.json.encode(record)) + b"\n")


class Verifier:
    """Checks that versions are signed by a trusted key."""

    def __init__(self, public_keys: Path) -> None:
        """Read the trusted keys.

        Args:
            public_keys: A PEM file with one or several concatenated keys (SubjectPublicKeyInfo).

        Raises:
            ConfigError: It cannot be read, or holds something else; or ``cryptography`` is not installed.
        """
        self._keys = {key_id(key): key for key in _public_keys(public_keys)}
        self._invalid: type[Exception] = _invalid_signature()

    def check(self, directory: Path, model: str, version: int, manifest: bytes) -> str:
        """Check the signature of a version.

        Args:
            directory: The version directory.
            model: The name that it will be served under.
            version: Its number.
            manifest: The content of its manifest; the caller must use these bytes afterwards.

        Returns:
            The id of the trusted key that has signed it.

        Raises:
            LoadError: It is not signed, no trusted key has signed it, or the signature is for another model
                or version.
        """
        there = _read(directory)
        if there is None:
            raise LoadError(
                f"not signed: {SIGNATURE_FILE} is missing, and only signed versions are served here; "
                "`headrace sign` signs it"
            )
        ours = [one for one in there.signatures if one.key in self._keys]
        if not ours:
            by = ", ".join(sorted({one.key[:_ID_DIGITS] for one in there.signatures})) or "nobody"
            raise LoadError(
                f"signed by {by}, but the trusted keys are {', '.join(sorted(self._keys))}; sign it with "
                "one of them"
            )
        for one in ours:
            try:
                self._keys[one.key].verify(one.ed25519, _message(model, version, manifest))
            except self._invalid:
                continue
            return one.key
        if (there.model, there.version) != (model, version):
            raise LoadError(
                f"signed as version {there.version} of {there.model:.200}, not as version {version} of "
                f"{model}; sign it again under its present name and number"
            )
        raise LoadError(
            f"its signature does not match {MANIFEST_FILE}: one of them was changed; publish the "
            "version again"
        )


def _message(model: str, version: int, manifest: bytes) -> bytes:
    """Return the bytes to sign. Names hold no line breaks, so different versions have different messages."""
    digest = hashlib.sha256(manifest).hexdigest()
    return b"\n".join((_DOMAIN, model.encode(), b"%d" % version, digest.encode()))


def _read(directory: Path) -> Signatures | None:
    try:
        content = read_file(directory / SIGNATURE_FILE, _LARGEST_SIGNATURE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LoadError(f"{SIGNATURE_FILE} cannot be read: {error.strerror}") from error
    check_format(content, FORMAT, SIGNATURE_FILE)
    try:
        found = msgspec.json.decode(content, type=Signatures)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise LoadError(f"{SIGNATURE_FILE}: not a signature file: {error}; sign the version again") from error
    if len(found.signatures) > _MOST_SIGNATURES:
        raise LoadError(f"{SIGNATURE_FILE}: expected at most {_MOST_SIGNATURES} signatures")
    return found


def _private_key(file: Path) -> Ed25519PrivateKey:
    ed25519 = _ed25519()
    key: Ed25519PrivateKey | None = _loaded(_serialization().load_pem_private_key, _read_key(file), None)
    if key is None or not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _not_a_key(file, "a private")
    return key


def _public_keys(file: Path) -> list[Ed25519PublicKey]:
    ed25519 = _ed25519()
    keys = [_loaded(_serialization().load_pem_public_key, one) for one in _PEM.findall(_read_key(file))]
    if not keys or not all(isinstance(key, ed25519.Ed25519PublicKey) for key in keys):
        raise _not_a_key(file, "one or several public")
    return keys


def _read_key(file: Path) -> bytes:
    try:
        return read_file(file, _LARGEST_KEY_BYTES)
    except OSError as error:
        raise ConfigError(f"the key {file} cannot be read: {error.strerror or error}") from error


def _loaded(load: Callable[..., Any], *given: object) -> Any:
    try:
        return load(*given)
    except (ValueError, TypeError, _unsupported()):  # not PEM, encrypted, or of an unsupported kind
        return None


def _not_a_key(file: Path, kind: str) -> ConfigError:
    return ConfigError(
        f"{file}: expected {kind} Ed25519 key in PEM, not encrypted; `headrace signing-key FILE` makes a pair"
    )


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise needs_extra("a signed version", "signing", error) from error
    return ed25519


def _serialization() -> Any:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra

    return serialization


def _invalid_signature() -> type[Exception]:
    _ed25519()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra

    return InvalidSignature


def _unsupported() -> type[Exception]:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra

    return UnsupportedAlgorithm
