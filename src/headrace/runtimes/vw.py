"""Linear models of Vowpal Wabbit, from their text dump: ``model.vw.txt`` of ``vw --readable_model``.

There is one input ``example``, BYTES ``[rows]``: a line of VW's text format, whose label is ignored. There is
one output ``prediction``, FP32 ``[rows]``: the number that ``vw --testonly --predictions`` writes. Needs the
extra ``vw``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from headrace.base.errors import InvalidRows, LoadError, NotLoadable
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.runtimes import vw_text_kernels as lines
from headrace.runtimes.kernel_compiling import compile_as_child, make_ready
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.vw_file import ANY, Dump, Link, Packed, count_expanded, expanded, read
from headrace.runtimes.vw_sum_kernels import Interactions, Scratch, Weights, add_up

INPUT, OUTPUT = "example", "prediction"

_MOST_PRODUCTS, _MOST_EXPANDED, _SETS_KEPT = 1_000_000, 5_000, 64

_NO_WEIGHTS = b"Version 9\nMin label:0\nMax label:0\nbits:1\noptions:\nChecksum: 0\n:0\n"

_REASONS = {
    lines.NO_BAR: "expected '|' before the features, as in '|user age:31 city=oslo'; there is none",
    lines.LINE_END: "expected one line, got a line end within it; send each example as a row",
    lines.NAMELESS: "expected the name of a namespace, or a space, after '|'; got ':'",
    lines.RESERVED: "a namespace begins with the byte 0x80, which VW reserves for the constant",
    lines.WEIGHT: "expected a number as the namespace's weight after ':'",
    lines.EMPTY_VALUE: "expected a number or a text after ':'; got nothing",
    lines.NUMBER: "expected a finite decimal number, or a text that does not begin like one, after ':'",
    lines.INFINITE: "expected a value that float32 can hold",
    lines.HEAD: "expected 'label importance base tag|' at most; the base must be a number",
}

_Links = Mapping[Link, Callable[[Array], Array]]
_ONE = np.float32(1)
_LINKS: _Links = {
    "identity": lambda sums: sums,
    "logistic": lambda sums: _ONE / (_ONE + np.exp(-sums)),
    "glf1": lambda sums: np.float32(2) / (_ONE + np.exp(-sums)) - _ONE,
    "poisson": np.exp,
}


def load(file: Path, options: RuntimeOptions) -> VwServable:
    """Load a model.

    Args:
        file: A text dump of VW.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: The dump is damaged, or needs an option of VW that is not supported.
    """
    options.check_known({"products": int})
    try:
        dump = read(file.read_bytes())
    except OSError as error:
        raise LoadError(f"cannot read {file.name}: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"cannot read {file.name} as a text dump of Vowpal Wabbit: {error}") from error
    except NotLoadable as error:
        raise NotLoadable(f"{file.name}: {error.message}") from error
    servable = VwServable(dump, options)
    about = {"model": file.parent.parent.name, "version": file.parent.name}
    make_ready(run_once, ("headrace.runtimes.vw",), about)
    return servable


def run_once() -> None:
    """Predict a row, to compile or load the kernels, which are the same for all models.

    Raises:
        NotKept: A kernel is not cached, and compiling is not allowed.
    """
    VwServable(read(_NO_WEIGHTS), RuntimeOptions()).predict({INPUT: np.array([b"|"], STRING)})


class VwServable:
    """A linear model of VW."""

    platform = "vw"
    is_native = True

    def __init__(self, dump: Dump, options: RuntimeOptions) -> None:
        """Take over a model.

        Args:
            dump: The model.
            options: The operator's settings.

        Raises:
            NotLoadable: The option ``products`` is not positive.
        """
        self._most = int(options.options.get("products", _MOST_PRODUCTS))
        if self._most < 1:
            raise NotLoadable(f"runtime.options.products: expected 1 or more, got {self._most}")
        self._reading = lines.Reading(dump.ignored, dump.hash_seed, dump.hash_all, dump.constant)
        self._weights = Weights(dump.keys, dump.weights, (1 << dump.bits) - 1, dump.not_linear)
        self._link, self._labels = _LINKS[dump.link], dump.labels
        self._interactions = dump.interactions
        self._has_wildcards = any(ANY in one for one in dump.interactions)
        self._longest = max(map(len, dump.interactions), default=1)
        self._fixed = Packed.of([np.frombuffer(one, np.uint8)[:, np.newaxis] for one in dump.interactions])
        self._expanded = lru_cache(_SETS_KEPT)(self._expand)
        kind = options.signature.kind
        signature = Signature(
            DEFAULT_SIGNATURE,
            (TensorSpec(INPUT, STRING, ()),),
            (TensorSpec(OUTPUT, np.dtype(np.float32), ()),),
            kind="regress" if kind == "predict" else kind,
        )
        self.signatures: Mapping[str, Signature] = {signature.name: signature}

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch.

        Args:
            inputs: Every input, checked.
            signature: There is only the default one.

        Raises:
            InvalidRows: A line is malformed, or makes too many products of features.
        """
        texts = inputs[INPUT].tolist()
        rows = len(texts)
        text = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        sizes = np.fromiter(map(len, texts), np.int64, rows)
        features = lines.Features.room_for(len(text), rows)
        wrong = np.empty((rows, 2), np.int64)
        room = lines.Room.of(int(sizes.max()))
        lines.read_lines(text, sizes.cumsum(), self._reading, features, room, wrong)
        if wrong[:, 0].any():
            raise _refusal(wrong)
        sums = np.empty(rows, np.float32)
        refused = np.empty(rows, np.bool_)
        scratch = Scratch.of(self._longest)
        for interactions in self._interactions_of(features, rows):
            add_up(features, self._weights, interactions, scratch, sums, refused)
        if refused.any():
            reason = (
                f": makes more than {self._most} products of features; "
                "send fewer features in the namespaces that interact"
            )
            raise InvalidRows.of(dict.fromkeys(np.flatnonzero(refused).tolist(), (INPUT, reason)))
        if np.isnan(sums).any():
            what = ": its values are so large that the sum is not a number"
            raise InvalidRows.of(dict.fromkeys(np.flatnonzero(np.isnan(sums)).tolist(), (INPUT, what)))
        with np.errstate(over="ignore"):  # the link of a sum far from 0 is at its limit
            return {OUTPUT: self._link(np.clip(sums, *self._labels, dtype=np.float32))}

    def _interactions_of(self, features: lines.Features, rows: int) -> Iterator[Interactions]:
        """Yield the interactions of all rows, for some of them at a time.

        Raises:
            InvalidRows: The namespaces of a row make too many.
        """
        if not self._has_wildcards:
            all_of_them = np.empty((rows, 2), np.int64)
            all_of_them[:] = 0, len(self._interactions)
            yield Interactions(*self._fixed, 0, all_of_them, self._most)
            return
        first, every, count = 0, list[Array](), 0
        which: list[tuple[int, int]] = []
        places: dict[bytes, tuple[int, int]] = {}
        for row, there in enumerate(self._sets(features)):
            if there not in places:
                made = self._expanded(there)
                places[there] = count, count + sum(one.shape[1] for one in made)
                every += made
                _, count = places[there]
            which.append(places[there])
            if count > _MOST_EXPANDED or row == rows - 1:  # bounds the memory of many different rows
                yield Interactions(*Packed.of(every), first, np.array(which, np.int64), self._most)
                first, every, count, which, places = row + 1, [], 0, [], {}

    def _sets(self, features: lines.Features) -> list[bytes]:
        """Return the namespaces of each row, by first byte.

        Raises:
            InvalidRows: Those of a row make too many interactions.
        """
        sets, start = [], 0
        for end in features.row_ends.tolist():
            sets.append(bytes(sorted(features.groups[start:end].tolist())))
            start = end
        made = [count_expanded(self._interactions, len(there)) for there in sets]
        if max(made) > _MOST_EXPANDED:
            refused = {
                row: f": ':' makes {count} interactions of its namespaces, more than {_MOST_EXPANDED}; "
                "send its features in fewer namespaces"
                for row, count in enumerate(made)
                if count > _MOST_EXPANDED
            }
            raise InvalidRows.of({row: (INPUT, reason) for row, reason in refused.items()})
        return sets

    def _expand(self, namespaces: bytes) -> list[Array]:
        return expanded(self._interactions, namespaces)

    def close(self) -> None:
        """Free the model."""
        self._expanded.cache_clear()
        del self._weights


def _refusal(wrong: Array) -> InvalidRows:
    """Return the error for the rows that are wrong.

    Args:
        wrong: As filled by ``read_lines``.
    """
    rows = np.flatnonzero(wrong[:, 0]).tolist()
    return InvalidRows.of(
        {row: (INPUT, f", byte {wrong[row, 1]}: {_REASONS[int(wrong[row, 0])]}") for row in rows}
    )


if __name__ == "__main__":  # the child process of ``make_ready``
    compile_as_child(run_once)
