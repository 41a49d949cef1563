"""Who signed what: each way in which a signature may not fit is told, and none is taken for one that does."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, LoadError
from headrace.versions.layout import MANIFEST_FILE, SIGNATURE_FILE
from headrace.versions.manifest import check_manifest, manifest_content, publish, write_manifest
from headrace.versions.signatures import Signatures, Verifier, new_keys, signer


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    new_keys(tmp_path / "trainer.pem")
    return tmp_path / "trainer.pem"


@pytest.fixture
def version(tmp_path: Path, keys: Path) -> Path:
    source = tmp_path / "made"
    source.mkdir()
    (source / "model.bin").write_bytes(b"weights")
    return publish(source, tmp_path / "models/ctr", sign=signer(keys))


def verified(version: Path, keys: Path, model: str = "ctr", number: int = 1) -> str:
    content = manifest_content(version)
    assert content is not None
    return Verifier(public(keys)).check(version, model, number, content)


def public(keys: Path) -> Path:
    return keys.with_name(f"{keys.name}.pub")


def test_a_published_version_is_signed_for_its_model_and_number(version: Path, keys: Path) -> None:
    record = msgspec.json.decode((version / SIGNATURE_FILE).read_bytes(), type=Signatures)
    assert (record.model, record.version) == ("ctr", 1)
    assert verified(version, keys) == record.signatures[0].key


def test_the_number_is_the_one_that_it_gets(tmp_path: Path, keys: Path, version: Path) -> None:
    second = publish(tmp_path / "made", version.parent, sign=signer(keys))
    assert second.name == "2"
    assert verified(second, keys, number=2)


@pytest.mark.parametrize(("model", "number"), [("other", 1), ("ctr", 2)])
def test_another_place_is_refused_and_named(version: Path, keys: Path, model: str, number: int) -> None:
    with pytest.raises(LoadError, match=f"signed as version 1 of ctr, not as version {number} of {model}"):
        verified(version, keys, model, number)


def test_a_signature_file_altered_for_another_model_is_refused(version: Path, keys: Path) -> None:
    file = version / SIGNATURE_FILE
    file.write_bytes(file.read_bytes().replace(b'"ctr"', b'"other"'))
    with pytest.raises(LoadError, match=r"does not match"):
        verified(version, keys, "other")


def test_a_changed_manifest_is_refused(version: Path, keys: Path) -> None:
    write_manifest(version, signature="another")
    with pytest.raises(LoadError, match=r"its signature does not match headrace-manifest.json"):
        verified(version, keys)


def test_a_changed_file_does_not_have_its_checksum(version: Path, keys: Path) -> None:
    (version / "model.bin").write_bytes(b"Weights")
    verifier = Verifier(public(keys))
    with pytest.raises(LoadError, match=r"checksum"):
        check_manifest(version, vouch=lambda content: verifier.check(version, "ctr", 1, content))


def test_the_error_for_a_missing_signature_gives_the_command(version: Path, keys: Path) -> None:
    (version / SIGNATURE_FILE).unlink()
    with pytest.raises(LoadError, match=r"not signed: .*`headrace sign` signs it"):
        verified(version, keys)


def test_no_manifest_is_not_signed(version: Path) -> None:
    (version / MANIFEST_FILE).unlink()
    with pytest.raises(LoadError, match=r"not signed: it has no headrace-manifest.json"):
        check_manifest(version, vouch=lambda content: None)


def test_another_key_is_named_with_those_that_are_trusted(version: Path, tmp_path: Path) -> None:
    new_keys(tmp_path / "other.pem")
    with pytest.raises(LoadError, match=r"signed by [0-9a-f]{16}, but the trusted keys are [0-9a-f]{16};"):
        verified(version, tmp_path / "other.pem")


def test_keys_are_exchanged_one_after_the_other(version: Path, keys: Path, tmp_path: Path) -> None:
    new_keys(tmp_path / "new.pem")
    signer(tmp_path / "new.pem")(version, "ctr", 1)
    assert verified(version, keys) != verified(version, tmp_path / "new.pem")
    both = tmp_path / "both.pub"
    both.write_bytes(public(keys).read_bytes() + public(tmp_path / "new.pem").read_bytes())
    assert Verifier(both).check(version, "ctr", 1, manifest_content(version) or b"")


def test_signing_again_replaces_the_signature_of_the_key(version: Path, keys: Path) -> None:
    write_manifest(version, signature="another")
    signer(keys)(version, "ctr", 1)
    assert verified(version, keys)
    record = msgspec.json.decode((version / SIGNATURE_FILE).read_bytes(), type=Signatures)
    assert len(record.signatures) == 1


def test_a_copy_that_is_published_leaves_the_old_signature_behind(version: Path, tmp_path: Path) -> None:
    copy = publish(version, tmp_path / "models/other")
    assert not (copy / SIGNATURE_FILE).exists()
    assert (copy / "model.bin").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 10_000,
        b"\xff",
        b'{"format":2,"model":"ctr","version":1,"signatures":[]}',
        b"x" * 2**17,
    ],
)
def test_a_malformed_signature_file_is_refused(version: Path, keys: Path, content: bytes) -> None:
    (version / SIGNATURE_FILE).write_bytes(content)
    with pytest.raises(LoadError, match=SIGNATURE_FILE):
        verified(version, keys)


def test_a_signature_of_another_length_is_no_signature(version: Path, keys: Path) -> None:
    record = msgspec.json.decode((version / SIGNATURE_FILE).read_bytes(), type=Signatures)
    short = msgspec.structs.replace(record.signatures[0], ed25519=b"\0" * 3)
    changed = msgspec.structs.replace(record, signatures=(short,))
    (version / SIGNATURE_FILE).write_bytes(msgspec.json.encode(changed))
    with pytest.raises(LoadError, match=r"does not match"):
        verified(version, keys)


def test_a_version_without_a_manifest_cannot_be_signed(version: Path, keys: Path) -> None:
    (version / MANIFEST_FILE).unlink()
    with pytest.raises(FailedPrecondition, match=r"has no headrace-manifest.json"):
        signer(keys)(version, "ctr", 1)


def test_the_private_key_is_for_its_owner_only_and_is_never_written_over(keys: Path) -> None:
    assert keys.stat().st_mode & 0o777 == 0o600
    before = keys.read_bytes()
    with pytest.raises(FailedPrecondition, match=r"trainer.pem.pub exists"):
        new_keys(keys)
    public(keys).unlink()
    with pytest.raises(FailedPrecondition, match=r"trainer.pem exists"):
        new_keys(keys)
    assert keys.read_bytes() == before


def test_the_two_kinds_of_keys_are_not_taken_for_one_another(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one or several public"):
        Verifier(keys)
    with pytest.raises(ConfigError, match=r"expected a private Ed25519 key"):
        signer(public(keys))
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        Verifier(tmp_path / "nowhere.pub")
    (tmp_path / "empty.pub").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"one or several public"):
        Verifier(tmp_path / "empty.pub")


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem, spki = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "ec.pub").write_bytes(other.public_bytes(pem, spki))
    with pytest.raises(ConfigError, match=r"Ed25519"):
        Verifier(tmp_path / "ec.pub")


def test_a_version_that_was_moved_as_a_whole_keeps_its_signature(
    version: Path, keys: Path, tmp_path: Path
) -> None:
    shutil.move(version.parent, tmp_path / "elsewhere")
    assert verified(tmp_path / "elsewhere/1", keys)
