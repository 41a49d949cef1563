"""The description of an archive: its spaces, their versions, and their lookup counts."""

from __future__ import annotations

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.columns import described


def spaces(archive: Archive, space: str = "") -> list[dict[str, object]]:
    """Describe spaces, with the field names of the message ``Space``.

    Args:
        archive: The archive.
        space: Name of the space; "" for all.

    Raises:
        NotFound: There is no such space.
    """
    return [_described(archive, name) for name in ([space] if space else archive.config.spaces)]


def _described(archive: Archive, space: str) -> dict[str, object]:
    record = archive.record(space)
    settings, counts = archive.config.spaces[space], archive.counts[space]
    return {
        "name": space,
        "default_version": record.default,
        "versions": [
            {
                "version": one.number,
                "dimension": one.dimension,
                "dtype": one.dtype,
                "answered": one.dtype if one.columns else one.form.answered.name,
                "embedder": one.embedder,
                "fingerprint": one.fingerprint,
                "is_full": one.is_full,
                "created_seconds": one.created,
                "columns": described(one.columns),
            }
            for one in record.versions
        ],
        "max_keys": settings.max_keys,
        "max_key_bytes": settings.max_key_bytes,
        "counts": {
            "lookups": counts.lookups,
            "keys": counts.keys,
            "cached": counts.cached,
            "stored": counts.stored,
            "missing": counts.missing,
        },
    }
