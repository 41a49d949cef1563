"""`python -m tools.prose`: check the English of docs and docstrings (CONTRIBUTING.md, "English").

It flags sentences that begin with a dangling "What …" or "Who …" clause, idioms that are not English, and
sentences that are too long.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    """Yield the paragraphs of one docstring; each entry of a section is one, without its name.

    Literal blocks, which follow a line that ends with ``::``, are skipped.
    """
    kept: list[str] = []
    started, inside, indent, literal = first, False, 0, math.inf
    for number, line in enumerate([*docstring.splitlines(), ""], first):
        plain, depth = line.strip(), len(line) - len(line.lstrip())
        if plain and depth <= literal:
            literal = depth if plain.endswith("::") else math.inf
        elif depth > literal:
            plain = ""
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


def main() -> int:
    """Print the findings; return an exit code."""
    found = all_findings(ROOT)
    lines = [f"{one.file}:{one.line}: {one.rule}: {one.sentence}" for one in found]
    print("\n".join([*lines, f"English: {len(found)} sentences to rewrite"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
