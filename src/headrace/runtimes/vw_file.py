"""Read and check a text dump of Vowpal Wabbit: ``vw --readable_model FILE``, or ``--invert_hash FILE``.

The format is that of ``save_load_header`` and ``save_load_online_state_gd`` in VW's sources. A header has the
options that the model needs. It ends with a line ``:0``, or ``:1`` and the state of training. Each weight
has a line ``index:weight …``, with more numbers in a model that can learn further.

An interaction is the first bytes of its namespaces; ``:`` stands for any namespace. The rules are those of
``interactions.h`` in VW's sources: of interactions of the same namespaces only one is kept, and one that
repeats a namespace beside others is sorted. The order of the others matters, because it is hashed.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from headrace.base.errors import NotLoadable, listed, shown
from headrace.base.tensors import Array

Link = Literal["identity", "logistic", "glf1", "poisson"]

_Word = TypeVar("_Word", bound=str)

_LONGEST = 32
_LINKS: tuple[Link, ...] = ("identity", "logistic", "glf1", "poisson")
_HARMLESS = {  # of training, or of other formats than text
    *("adaptive", "chain_hash", "ftrl", "id", "invariant", "learning_rate", "normalized", "pistol"),
    *("power_t", "random_seed", "sgd"),
}
_FLAGS = {"adaptive", "chain_hash", "ftrl", "invariant", "noconstant", "normalized", "pistol", "sgd"}
_KNOWN = _HARMLESS | {
    *("cubic", "hash", "hash_seed", "ignore", "ignore_linear", "interactions", "keep", "link"),
    *("noconstant", "quadratic"),
}
_MOST_BITS, _DENSE_BITS, _SPARSE = 32, 20, 16
_MOST_HEADER, _SLICE = 2**20, 2**16  # bytes
_NUMBER = r"[-+]?(?:0x[0-9a-f.]+p[-+]?[0-9]+|[0-9.]+(?:e[-+]?[0-9]+)?)"
_INDEX_AND_WEIGHT = re.compile(  # the first form is faster; the second has names, as of --invert_hash
    rf"^([0-9]{{1,10}}):({_NUMBER})(?: [^:\s]+)*+$", re.MULTILINE | re.ASCII
)
_NAMED_WEIGHT = re.compile(
    rf"^(?:[^\n]*:)?([0-9]{{1,10}}):({_NUMBER})(?: [^:\s]+)*+$", re.MULTILINE | re.ASCII
)
_STATE = re.compile(
    rb"(?:(?:initial_t|norm normalizer|t|sum_loss|sum_loss_since_last_dump|dump_interval|min_label|max_label"
    rb"|weighted_labeled_examples|weighted_labels|weighted_unlabeled_examples|example_number|total_features"
    rb"|total_weight|sd::oec\.weighted_labeled_examples|current_pass|l1_state|l2_state) [^\s:]+\n)*+"
)
_HEADER_END = re.compile(rb"\nChecksum: [0-9]+\n")
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")

ANY = ord(":")
_FIRST_NAMED, _LAST_NAMED = ord(" "), ord("~")  # the namespaces that a wildcard stands for
_CHOICES_KEPT = 256


@dataclass(frozen=True, slots=True)
class Dump:
    """A model.

    Attributes:
        bits: Bits of a hash.
        keys: Indices of the weights, ascending: uint32; empty if ``weights`` has all 2^bits weights.
        weights: The weights: float32.
        interactions: First bytes of the namespaces of each interaction, in order.
        ignored: Whether namespaces are left out, by first byte: bool ``[256]``.
        not_linear: Whether only interactions use them: bool ``[256]``.
        constant: Whether each example has the constant feature.
        hash_all: Whether names that are numbers are hashed, too.
        hash_seed: Seed of the hash.
        link: The function from the sum to the prediction.
        labels: The smallest and the largest label, to which the sum is limited.
    """

    bits: int
    keys: Array
    weights: Array
    interactions: tuple[bytes, ...]
    ignored: Array
    not_linear: Array
    constant: bool
    hash_all: bool
    hash_seed: int
    link: Link
    labels: tuple[float, float]


def read(text: bytes) -> Dump:
    """Read a dump.

    Args:
        text: The file's contents.

    Raises:
        NotLoadable: It needs an option of VW that headrace does not support.
        ValueError: It is not a text dump, or is damaged.
    """
    if not text.startswith(b"Version "):
        raise ValueError(
            "it does not begin with 'Version', as a text dump does; "
            "`vw -t -i MODEL --readable_model FILE` makes one of a binary model"
        )
    if not text.endswith(b"\n"):
        raise ValueError("its end is missing")
    end = _HEADER_END.search(text, 0, _MOST_HEADER)
    if not end:
        raise ValueError("the last line of its header, 'Checksum', is missing")
    header = _header(text[: end.end() - 1])
    options = _options(header["options"])
    if text[end.end() : end.end() + 3] not in (b":0\n", b":1\n"):
        raise ValueError("the line ':0' or ':1' after its header is missing")
    bits = _whole(header["bits"], "bits", 1, _MOST_BITS)
    keys, weights = _weights(text, end.end() + 3, bits)
    return Dump(
        bits=bits,
        keys=keys,
        weights=weights,
        interactions=_interactions(options),
        ignored=_ignored(options),
        not_linear=_marked(options.get("ignore_linear", [])),
        constant="noconstant" not in options,
        hash_all=_choice(options, "hash", ("strings", "all")) == "all",
        hash_seed=_whole(options.get("hash_seed", [b"0"])[-1], "--hash_seed", 0, 2**32 - 1),
        link=_choice(options, "link", _LINKS),
        labels=_labels(header),
    )


# ---- Header ---------------------------------------------------------------------------------------


def _header(text: bytes) -> dict[str, bytes]:
    """Return the values of the header's lines, which say what the model is."""
    header: dict[str, bytes] = {}
    for line in text.split(b"\n"):
        if parted := re.fullmatch(rb"(Version|Id|Checksum:) ?(.*)", line):
            name, value = parted.groups()
        elif parted := re.fullmatch(rb"([0-9]+) (ngram|skip|pairs|triples|interactions):(.*)", line):
            value, name, _ = parted.groups()
        else:
            name, _, value = line.partition(b":")
        header[name.decode("latin-1")] = value.strip()
    for name in ("Min label", "Max label", "bits", "options", "Checksum:"):
        if name not in header:
            raise ValueError(f"the line {name!r} of the header is missing")
    for name in ("lda", "rank", "ngram", "skip", "pairs", "triples", "interactions"):
        if header.get(name, b"0") != b"0":
            raise _unsupported("skips" if name == "skip" else name)
    return header


def _labels(header: Mapping[str, bytes]) -> tuple[float, float]:
    least, most = (_number(header[name].decode("latin-1")) for name in ("Min label", "Max label"))
    if not least <= most:
        raise ValueError(f"Min label {least} is above Max label {most}")
    return least, most


# ---- Options --------------------------------------------------------------------------------------


def _options(line: bytes) -> dict[str, list[bytes]]:
    """Return the values of each option.

    Raises:
        NotLoadable: An option is not supported.
        ValueError: The line is damaged.
    """
    options: dict[str, list[bytes]] = {}
    words = line.split()
    at = 0
    while at < len(words):
        if not words[at].startswith(b"--"):
            raise ValueError(f"its options have {shown(words[at])}, which is no option")
        name = words[at].removeprefix(b"--").decode("latin-1")
        if name not in _KNOWN:
            raise _unsupported(name)
        at += 1
        value = b""
        if name not in _FLAGS:
            if at == len(words):
                raise ValueError(f"its option --{name} has no value")
            value = words[at]
            at += 1
        options.setdefault(name, []).append(value)
    return options


def _unsupported(option: str) -> NotLoadable:
    return NotLoadable(
        f"the model needs VW's option --{option}, which is not supported; linear models are, with "
        f"{listed('--' + one for one in sorted(_KNOWN - _HARMLESS))}"
    )


def _choice(options: Mapping[str, list[bytes]], name: str, choices: tuple[_Word, ...]) -> _Word:
    """Return an option's value, which must be one of these; the first of them if the option is absent."""
    chosen = options[name][-1].decode("latin-1") if name in options else choices[0]
    for choice in choices:
        if choice == chosen:
            return choice
    raise NotLoadable(
        f"the model needs VW's option --{name} {shown(chosen)}, which is not supported; {listed(choices)} are"
    )


def _interactions(options: Mapping[str, list[bytes]]) -> tuple[bytes, ...]:
    found = []
    for name, least, most in (("quadratic", 2, 2), ("cubic", 3, 3), ("interactions", 2, _LONGEST)):
        for value in options.get(name, []):
            one = _ESCAPED.sub(lambda escaped: bytes([int(escaped[1], 16)]), value)
            if not least <= len(one) <= most:
                raise ValueError(f"its option --{name} {shown(value)} has {len(one)} namespaces")
            found.append(one)
    return in_order(found)


def _ignored(options: Mapping[str, list[bytes]]) -> Array:
    ignored = _marked(options.get("ignore", []))
    return ~_marked(options["keep"]) if "keep" in options else ignored


def _marked(namespaces: Iterable[bytes]) -> Array:
    """Return by first byte whether a namespace is among these: bool ``[256]``."""
    marked = np.zeros(256, np.bool_)
    marked[list(b"".join(namespaces))] = True
    return marked


# ---- Weights --------------------------------------------------------------------------------------


def _weights(text: bytes, start: int, bits: int) -> tuple[Array, Array]:
    """Return the keys and the weights, as in ``Dump``, of the lines from a position on."""
    state = _STATE.match(text, start, start + _SLICE)
    found = [_part(text, begin, end) for begin, end in _slices(text, state.end() if state else start)]
    keys = np.concatenate([np.empty(0, np.int64), *(part for part, _ in found)])
    with np.errstate(over="ignore"):  # refused below
        numbers = np.concatenate([np.empty(0), *(part for _, part in found)]).astype(np.float32)
        weights = _materialized(numbers, state)
    if not np.isfinite(weights).all():
        raise ValueError("a weight is too large for float32: training has diverged")
    order = np.argsort(keys, kind="stable")
    keys, weights = keys[order], weights[order]
    if len(keys) and keys[-1] >> bits:
        raise ValueError(f"it has a weight with the index {keys[-1]}, and {bits} bits")
    if (keys[1:] == keys[:-1]).any():
        raise ValueError("an index has two weights")
    return _stored(keys.astype(np.uint32), weights, bits)


def _slices(text: bytes, begin: int) -> Iterator[tuple[int, int]]:
    """Yield parts of whole lines, so short that other threads run between the calls that read them."""
    while begin < len(text):
        end = text.rfind(b"\n", begin, begin + _SLICE) + 1
        if not end:
            raise _damaged(text, begin, begin + _SLICE)
        yield begin, end
        begin = end


def _part(text: bytes, begin: int, end: int) -> tuple[Array, Array]:
    """Return the keys and the weights of the lines from a position to another: int64 and float64."""
    lines = text[begin:end].decode("latin-1")
    count = lines.count("\n")
    found = _INDEX_AND_WEIGHT.findall(lines)
    if len(found) < count:
        found = _NAMED_WEIGHT.findall(lines)
    if len(found) < count:
        for line in lines.split("\n"):
            if not _NAMED_WEIGHT.match(line):
                raise _damaged(text, begin, begin + len(line))
            begin += len(line) + 1
    keys = np.fromiter((int(key) for key, _ in found), np.int64, count)
    return keys, np.fromiter((_number(weight) for _, weight in found), np.float64, count)


def _damaged(text: bytes, begin: int, end: int) -> ValueError:
    """Return the error for a line that is no weight's."""
    number, line = text.count(b"\n", 0, begin) + 1, text[begin:end]
    if re.search(rb":-?(nan|inf)", line):
        return ValueError(f"line {number}: the weight is not finite: training has diverged")
    return ValueError(f"line {number}: expected 'index:weight', got {shown(line)}")


def _materialized(weights: Array, state: re.Match[bytes] | None) -> Array:
    """Apply the regularization that VW applies when it loads the model, ``sync_weights`` in ``gd.cc``."""
    lines = state.group().decode("latin-1").split("\n") if state else []
    values = dict(line.rpartition(" ")[::2] for line in lines)
    gravity = np.float32(_number(values.get("l1_state", "0")))
    contraction = np.float32(_number(values.get("l2_state", "1")))
    return np.where(np.abs(weights) > gravity, weights - np.sign(weights) * gravity, 0) * contraction


def _stored(keys: Array, weights: Array, bits: int) -> tuple[Array, Array]:
    """Store many weights in one array, and few of very many by their keys."""
    if bits > _DENSE_BITS and len(keys) * _SPARSE < 1 << bits:
        return (keys, weights) if len(keys) else (np.zeros(1, np.uint32), np.zeros(1, np.float32))
    every = np.zeros(1 << bits, np.float32)
    every[keys] = weights
    return np.empty(0, np.uint32), every


def _number(text: str) -> float:
    try:
        return float.fromhex(text) if "x" in text else float(text)
    except (ValueError, OverflowError):
        raise ValueError(f"expected a number, got {shown(text)}") from None


def _whole(text: bytes, name: str, least: int, most: int) -> int:
    if not re.fullmatch(rb"[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise ValueError(f"{name}: expected a number from {least} to {most}, got {shown(text)}")
    return int(text)


# ---- Interactions ----


class Packed(NamedTuple):
    """Interactions one after the other.

    Attributes:
        terms: First bytes of the namespaces of each: uint8.
        ends: The end of each: int64.
    """

    terms: Array
    ends: Array

    @classmethod
    def of(cls, blocks: Sequence[Array]) -> Packed:
        """Pack interactions.

        Args:
            blocks: First bytes of the namespaces: uint8 ``[length, interactions]`` each.
        """
        terms = [np.empty(0, np.uint8), *(one.T.ravel() for one in blocks)]
        sizes = [np.empty(0, np.int64), *(np.full(one.shape[1], len(one), np.int64) for one in blocks)]
        return cls(np.concatenate(terms), np.concatenate(sizes).cumsum())


def in_order(interactions: Iterable[bytes]) -> tuple[bytes, ...]:
    """Sort interactions, and keep one of those of the same namespaces.

    Args:
        interactions: The interactions, from the options.
    """
    kept: dict[bytes, bytes] = {}
    for one in sorted(interactions, key=lambda one: (len(one), one)):
        kept.setdefault(bytes(sorted(one)), one)
    return tuple(ordered if 1 < len(set(ordered)) < len(ordered) else one for ordered, one in kept.items())


def count_expanded(interactions: Sequence[bytes], namespaces: int) -> int:
    """Return the number of interactions that ``expanded`` makes at most.

    Args:
        interactions: The interactions, some with wildcards.
        namespaces: Number of namespaces of an example.
    """
    wildcards = (one.count(ANY) for one in interactions)
    return sum(math.comb(namespaces + count - 1, count) if count else 1 for count in wildcards)


def expanded(interactions: Iterable[bytes], namespaces: Iterable[int]) -> list[Array]:
    """Replace wildcards by the namespaces of an example, in all combinations, with the rules of ``in_order``.

    Args:
        interactions: The interactions, some with wildcards.
        namespaces: First bytes of the namespaces.

    Returns:
        The interactions of each length, the shortest first: uint8 ``[length, interactions]`` each.
    """
    there = np.array(sorted(one for one in set(namespaces) if _FIRST_NAMED <= one <= _LAST_NAMED), np.uint8)
    by_length: dict[int, list[bytes]] = {}
    for one in interactions:
        by_length.setdefault(len(one), []).append(one)
    return [_of_one_length(by_length[length], there) for length in sorted(by_length)]


def _of_one_length(interactions: Sequence[bytes], there: Array) -> Array:
    if len(interactions) == 1 and set(interactions[0]) == {ANY}:
        return there[_merged_choices(len(there), len(interactions[0]))]
    return _merged([_without_wildcards(one, there) for one in interactions])


def _without_wildcards(interaction: bytes, there: Array) -> Array:
    """Return an interaction with all choices for its wildcards, sorted."""
    terms = np.frombuffer(interaction, np.uint8)
    wild = np.flatnonzero(terms == ANY)
    if not len(wild):
        return terms[:, np.newaxis]
    chosen = there[_choices(len(there), len(wild))]
    made = np.repeat(terms[:, np.newaxis], chosen.shape[1], axis=1)
    made[wild] = chosen
    return made


@lru_cache(_CHOICES_KEPT)
def _choices(things: int, places: int) -> Array:
    """Return how things can fill places, a thing as often as wanted: uint8 ``[places, choices]``, sorted."""
    chosen = itertools.combinations_with_replacement(range(things), places)
    found = np.array(list(chosen), np.uint8).reshape(-1, places).T
    if places == 2:
        return found
    found = found[::-1]  # VW makes pairs in another way
    return found[:, _sorting(found)]


@lru_cache(_CHOICES_KEPT)
def _merged_choices(things: int, places: int) -> Array:
    """Return the choices as ``_merged`` has them: the order of namespaces does not depend on their names."""
    return _merged([_choices(things, places)])


def _merged(blocks: list[Array]) -> Array:
    """Sort interactions of one length, and keep one of those of the same namespaces."""
    made = np.concatenate(blocks, axis=1)
    ordered = np.sort(made, axis=0)
    if len(blocks) > 1:  # each block is sorted, and has none twice
        sorting = _sorting(made)
        kept = sorting[_firsts(ordered[:, sorting])]
        made, ordered = made[:, kept], ordered[:, kept]
    is_same = ordered[1:] == ordered[:-1]
    return np.where(is_same.any(axis=0) & ~is_same.all(axis=0), ordered, made)


def _firsts(columns: Array) -> Array:
    """Return the positions of columns that are like none before, ascending."""
    sorting = _sorting(columns)
    found = columns[:, sorting]
    is_first = np.ones(len(sorting), np.bool_)
    is_first[1:] = (found[:, 1:] != found[:, :-1]).any(axis=0)
    return np.sort(sorting[is_first])


def _sorting(columns: Array) -> Array:
    """Return the positions that sort columns by their first rows, those of like ones ascending."""
    return np.lexsort(columns[::-1])
