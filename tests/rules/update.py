"""Write the expected texts of the rule fixtures, and the output under each rule's example, anew."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fixture_tools import ROOT, cases, lint

from memlint.rules.registry import RULES

EXAMPLE = re.compile(r"(## Example\n```yaml\n(.*?)```\n)(?:\n?```text\n.*?```\n)?", re.S)


def example_of(text):
    """Return the input of a rule's example, or None."""
    found = EXAMPLE.search(text)
    return found.group(2) if found else None


def expected_of(text):
    """Return the output that the docstring shows, or None."""
    found = re.search(r"```text\n(.*?)```", text, re.S)
    return found.group(1) if found else None


def run_example(source, code):
    """Check an example as a file ``train.yaml``; lines are wrapped to nothing, so that the text is what is printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.yaml"
        path.write_text(source)
        return lint(path, code)


def main():
    for code, source in cases():
        source.with_suffix(".txt").write_text(lint(source, code))
    for entry in RULES:
        path = ROOT / "memlint" / "rules" / f"{entry.module}.py"
        text = path.read_text()
        output = run_example(example_of(text), entry.code)
        path.write_text(EXAMPLE.sub(lambda m, o=output: f"{m.group(1)}```text\n{o}```\n", text, count=1))


if __name__ == "__main__":
    main()
