"""Which sentences the check of the English flags."""

from __future__ import annotations

import pytest

from tools.prose import MOST_WORDS, findings

PAGE = """# What a heading says is not checked

What waits is dropped. A model that waits
is told of it.

```
What code says is not checked.
```

| What a table says | is not checked |

- Which one? What else?
- Who asks `headrace status` sees [what it costs](x.md).
"""

MODULE = '''"""Return what is asked for."""

SIZE = 1
"""What it holds."""


def ask(key: str) -> None:
    """Ask.

    Args:
        key: What is looked up. A key
            that is over.

    Returns:
        Whose it is.

    It is laid out like this::

        0  What a literal block says is not checked.

        8  The wait is over.
    """
    "What is no docstring's first statement is one of these, too."
'''


def rules_of(file: str, text: str) -> list[tuple[int, str]]:
    return [(one.line, one.rule) for one in findings(file, text)]


def test_sentences_of_a_page_are_checked_without_code_tables_and_headings() -> None:
    assert rules_of("a.md", PAGE) == [(3, "dangling"), (3, "is told"), (13, "dangling")]


def test_docstrings_are_checked_by_entry() -> None:
    found = rules_of("a.py", MODULE)
    assert [rule for _, rule in found] == ["dangling", "dangling", "is over", "dangling", "dangling"]
    assert found[0] == (4, "dangling")


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("As the store waits, so does the filler.", "as … so"),
        ("A stream that stands still is closed.", "stands still"),
        ("The wait is over.", "is over"),
        ("It costs 100 ms and is over the limit.", None),
        (f"A {'long ' * MOST_WORDS}sentence.", "long"),
        ("Two sentences; " + "Each of them short. " * 20, None),
    ],
)
def test_each_rule(sentence: str, rule: str | None) -> None:
    assert [one.rule for one in findings("a.md", sentence)] == ([rule] if rule else [])
