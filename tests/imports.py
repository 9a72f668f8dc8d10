"""Reads which project files a module imports, lazy and relative imports included, without running anything."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("config", "hardware", "data", "model", "training", "evals", "app", "stages", "bench")


@cache
def imported_files(path: Path) -> frozenset[Path]:
    """Project files that one file imports directly."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = path.relative_to(ROOT).parts[: -node.level]
                base = ".".join((*parents, *([base] if base else [])))
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.split(".")[0] in PACKAGES:
                file = ROOT / (name.replace(".", "/") + ".py")
                if file.exists():
                    found.add(file)
    return frozenset(found)


def closure(path: Path, cut: Callable[[Path], bool] = lambda _: False) -> frozenset[Path]:
    """All project files that a file needs, itself included; those that `cut` says are left out, and what they need."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current not in seen and not cut(current):
            seen.add(current)
            waiting.extend(imported_files(current))
    return frozenset(seen)


def project_files() -> list[Path]:
    """Every Python file of the packages."""
    return sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
