"""What the documents point at is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])


@cache
def names_in(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_and_linked_files_exist(page: Path) -> None:
    text = page.read_text()
    lost = [
        f"{file}: {name}"
        for name, file in re.findall(r"\[`(test_\w+)`\]\(([\w./]+\.py)\)", text)
        if name not in names_in((page.parent / file).resolve())
    ]
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target and not (page.parent / target).exists():
            lost.append(target)
    assert not lost
