"""`python -m tools.prose [--update]`: check the English of docs and docstrings (CONTRIBUTING.md, "English").

It flags sentences that begin with a dangling "What …" or "Who …" clause, idioms that are not English, and
sentences that are too long. ``tools/prose_allowed.toml`` lists how many of each a file may still have. The
check fails where a file has more, and where it has fewer, so that the numbers only fall; ``--update`` lowers
them.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools" / "prose_allowed.toml"
PAGES = ("*.md", "docs/**/*.md")
SOURCES = ("src/headrace/**/*.py",)
NOT_CHECKED = ("CHANGELOG.md",)  # history; each entry is read once

MOST_WORDS = 35
RULES = {
    "dangling": re.compile(r"^(What|Who|Whose|Whoever|Whatever)\b(?!.*\?$)"),
    "is over": re.compile(r"\b(is|are|was|were) over(?=[.,;:)]|$)"),
    "is told": re.compile(r"\b(is|are|was|were|be|been) told\b"),
    "stands still": re.compile(r"\b(stand|stands|stood|standing) still\b"),
    "as … so": re.compile(r"\b[Aa]s [^.,;:]{1,80}, so (is|are|do|does|has|have|will|it)\b"),
}
LONG = "long"

FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"``[^`]+``|`[^`]+`")
LIST_ITEM = re.compile(r"^\s*([-*]|\d+\.) ")
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
ENTRY = re.compile(r"^\*{0,2}\w+(, \w+)*: ")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[\"'(*]*[A-Z0-9])")


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence that breaks a rule.

    Attributes:
        file: Its file, relative to the repository.
        line: Line where its paragraph begins.
        rule: A key of ``RULES``, or ``LONG``.
        sentence: The sentence.
    """

    file: str
    line: int
    rule: str
    sentence: str


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a Markdown page with their first lines, without code, tables and headings."""
    text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    kept: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        plain = line.strip().lstrip("> ")
        ends = not plain or plain.startswith(("|", "#", "<", "[!")) or LIST_ITEM.match(line)
        if ends and kept:
            yield number - len(kept), " ".join(kept)
            kept = []
        if not ends or LIST_ITEM.match(line):
            kept.append(LIST_ITEM.sub("", plain))


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and entries of all docstrings of a module, those of attributes too."""
    bodies = (getattr(node, "body", None) for node in ast.walk(ast.parse(text)))
    for statement in chain.from_iterable(body for body in bodies if isinstance(body, list)):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from entries(value.value, value.lineno)


def entries(docstring: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of one docstring; each entry of a section is one, without its name."""
    kept: list[str] = []
    started, inside, indent = first, False, 0
    for number, line in enumerate([*docstring.splitlines(), ""], first):
        plain, depth = line.strip(), len(line) - len(line.lstrip())
        if SECTION.match(plain):
            inside, indent = True, depth + 4
        entry = inside and depth == indent and ENTRY.match(plain)
        if (not plain or entry or SECTION.match(plain) or LIST_ITEM.match(line)) and kept:
            yield started, " ".join(kept)
            kept = []
        if plain and not SECTION.match(plain):
            started = started if kept else number
            kept.append(ENTRY.sub("", plain, count=1) if entry else LIST_ITEM.sub("", plain))


def findings(file: str, text: str) -> Iterator[Finding]:
    """Yield the sentences of a file that break a rule."""
    read = docstrings if file.endswith(".py") else paragraphs
    for line, paragraph in read(text):
        plain = CODE.sub("Code", LINK.sub(r"\1", paragraph))
        for sentence in SENTENCE_END.split(plain):
            broken = [rule for rule, pattern in RULES.items() if pattern.search(sentence)]
            if len(sentence.split()) > MOST_WORDS:
                broken.append(LONG)
            yield from (Finding(file, line, rule, sentence) for rule in broken)


def all_findings(root: Path) -> list[Finding]:
    """Return the findings of all pages and sources."""
    files = sorted(set(chain.from_iterable(root.glob(one) for one in (*PAGES, *SOURCES))))
    names = [(str(file.relative_to(root)), file) for file in files if file.name not in NOT_CHECKED]
    return list(chain.from_iterable(findings(name, file.read_text("utf-8")) for name, file in names))


def judged(found: Iterable[Finding], allowed: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return what is wrong: findings beyond those allowed, and numbers that are too high."""
    found = list(found)
    counts = Counter((one.file, one.rule) for one in found)
    limits = {(file, rule): most for file, rules in allowed.items() for rule, most in rules.items()}
    said = []
    for file, rule in sorted(counts.keys() | limits.keys()):
        count, most = counts[file, rule], limits.get((file, rule), 0)
        if count > most:
            said += [
                f"{one.file}:{one.line}: {rule}: {one.sentence}"
                for one in found
                if (one.file, one.rule) == (file, rule)
            ]
            said.append(f"{file}: {rule}: {count} sentences, allowed are {most}")
        elif count < most:
            said.append(f"{file}: {rule}: {count} sentences, allowed are {most}: run tools.prose --update")
    return said


def lowered(found: Iterable[Finding], allowed: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the allowed numbers, none above the number of findings."""
    counts = Counter((one.file, one.rule) for one in found)
    new = {
        file: {rule: min(most, counts[file, rule]) for rule, most in rules.items() if counts[file, rule]}
        for file, rules in allowed.items()
    }
    return {file: rules for file, rules in new.items() if rules}


def written(allowed: Mapping[str, Mapping[str, int]]) -> str:
    """Return the file of allowed numbers."""
    lines = ["# Sentences that tools/prose.py still allows, by file and rule; the numbers only fall."]
    for file in sorted(allowed):
        rules = ", ".join(f'"{rule}" = {allowed[file][rule]}' for rule in sorted(allowed[file]))
        lines.append(f'"{file}" = {{ {rules} }}')
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Check, or lower the allowed numbers; return an exit code."""
    if arguments not in ([], ["--update"]):
        print(__doc__, file=sys.stderr)
        return 2
    allowed = tomllib.loads(ALLOWED.read_text("utf-8"))
    found = all_findings(ROOT)
    if arguments:
        allowed = lowered(found, allowed)
        ALLOWED.write_text(written(allowed), "utf-8")
    said = judged(found, allowed)
    print("\n".join([*said, f"English: {len(found)} sentences to rewrite, {len(said)} faults"]))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
