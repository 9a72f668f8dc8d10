"""The shape of the code: who may import whom, what a stage depends on, and that importing does nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.imports import PACKAGES, ROOT, closure, imported_files, project_files

# package -> packages that it may import, besides itself. Nothing points sideways or back.
MAY_IMPORT = {
    "config": (),
    "hardware": ("config",),
    "data": ("config",),
    "model": ("config",),
    "training": ("config", "hardware", "data", "model"),
    "evals": ("config", "data", "model"),
    "app": ("config", "data", "model"),
    "stages": ("config", "hardware", "data", "model", "training", "evals", "app"),
    "bench": ("config", "hardware", "data", "model", "training", "stages"),
}
# What looks at a run without changing its weights: no stage depends on it, nor on what only it needs.
OBSERVERS = (
    "hardware",
    "training/telemetry.py",
    "stages/launch.py",
    "stages/hooks.py",
    "stages/process.py",
    "stages/preflight.py",
    "config/run.py",
)
LIMIT = 400  # lines a file
ENVIRONMENT = {"environ", "getenv", "putenv", "environb"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package(path: Path) -> str:
    return relative(path).split("/")[0]


def observes(path: Path) -> bool:
    return any(relative(path) == observer or relative(path).startswith(f"{observer}/") for observer in OBSERVERS)


def stage_deps() -> dict[str, list[str]]:
    """The project files and folders among each stage's deps in dvc.yaml; resolve, which always runs, has none."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return {
        name: [entry for entry in stage["deps"] if isinstance(entry, str) and entry.split("/")[0] in PACKAGES]
        for name, stage in stages.items()
        if "deps" in stage
    }


@pytest.mark.parametrize("name", PACKAGES)
def test_imports_point_up_and_never_sideways(name: str) -> None:
    wrong = [
        f"{relative(file)} imports {relative(needed)}"
        for file in project_files()
        if package(file) == name
        for needed in imported_files(file)
        if package(needed) != name and package(needed) not in MAY_IMPORT[name]
    ]
    assert not wrong


def test_the_reader_sees_lazy_and_relative_imports(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tests.imports.ROOT", tmp_path)
    for name in ("config/a.py", "config/b.py", "config/c.py", "model/deep/d.py", "model/deep/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    file = tmp_path / "model" / "deep" / "f.py"
    file.write_text(
        "import config.a as x\nif x:\n    from config import b\n\ndef f():\n    import config.c\n    from .d import g\n"
        "    from . import e\n"
    )
    found = {path.relative_to(tmp_path).as_posix() for path in imported_files(file)}
    assert found == {"config/a.py", "config/b.py", "config/c.py", "model/deep/d.py", "model/deep/e.py"}


def test_no_file_imports_itself_in_a_circle() -> None:
    circles = [
        f"{relative(file)} ↔ {relative(needed)}"
        for file in project_files()
        for needed in imported_files(file)
        if file in closure(needed)
    ]
    assert not circles


def test_no_file_is_too_long() -> None:
    code = [*project_files(), *(ROOT / "tests").rglob("*.py")]
    assert not [relative(file) for file in code if len(file.read_text(encoding="utf-8").splitlines()) > LIMIT]


def test_there_are_no_package_files() -> None:
    assert not [relative(file) for name in (*PACKAGES, "tests") for file in (ROOT / name).rglob("__init__.py")]


def run_at_import(tree: ast.Module) -> list[ast.AST]:
    """All nodes that are evaluated when a module is imported: not the bodies of functions, but their defaults."""
    nodes: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [*node.decorator_list, *node.args.defaults, *(x for x in node.args.kw_defaults if x)]
        elif isinstance(node, ast.Lambda):
            waiting += node.args.defaults
        elif not is_main_guard(node):
            waiting += ast.iter_child_nodes(node)
    return nodes


def is_main_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ENVIRONMENT
    return isinstance(node, ast.ImportFrom) and any(alias.name in ENVIRONMENT for alias in node.names)


def test_no_import_reads_the_environment() -> None:
    wrong = [
        f"{relative(file)}:{node.lineno}"
        for file in project_files()
        for node in run_at_import(ast.parse(file.read_text(encoding="utf-8")))
        if reads_environment(node)
    ]
    assert not wrong


def test_the_environment_test_can_fail() -> None:
    bad = ["import os\nX = os.environ.get('X')", "from os import getenv", "import os\ndef f(x=os.getenv('X')): pass"]
    good = [
        "import os\ndef f():\n    return os.environ['X']",
        "import os\nif __name__ == '__main__':\n    os.getenv('X')",
    ]
    for source, expected in [*((text, True) for text in bad), *((text, False) for text in good)]:
        assert any(map(reads_environment, run_at_import(ast.parse(source)))) == expected, source


@pytest.mark.parametrize("stage", stage_deps())
def test_a_stage_depends_on_all_the_code_it_imports(stage: str) -> None:
    deps = stage_deps()[stage]
    needed = closure(ROOT / "stages" / f"{stage}.py", observes)
    missing = [
        relative(file)
        for file in needed
        if not any(relative(file) == dep or relative(file).startswith(f"{dep}/") for dep in deps)
    ]
    assert not missing, f"add to the deps of {stage} in dvc.yaml: {sorted(missing)}"


@pytest.mark.parametrize("stage", stage_deps())
def test_a_stage_depends_on_no_code_that_is_not_there(stage: str) -> None:
    assert not [dep for dep in stage_deps()[stage] if not (ROOT / dep).exists()]


@pytest.mark.parametrize("stage", ["pretrain", "midtrain", "sft"])
def test_no_training_stage_depends_on_code_it_does_not_need(stage: str) -> None:
    needed = closure(ROOT / "stages" / f"{stage}.py", observes)
    unneeded = []
    for dep in stage_deps()[stage]:
        path = ROOT / dep
        files = path.rglob("*.py") if path.is_dir() else [path]
        unneeded += [relative(file) for file in files if file not in needed]
    assert not unneeded, f"an edit of these would retrain for nothing: {unneeded}"


def test_the_cut_leaves_out_what_only_observers_need() -> None:
    whole, cut = (closure(ROOT / "stages" / "pretrain.py", *rule) for rule in ((), (observes,)))
    assert ROOT / "model" / "engine.py" in whole and ROOT / "model" / "engine.py" not in cut
    assert ROOT / "training" / "loop.py" in cut


def modules_after(code: str) -> set[str]:
    """Top-level modules that are loaded in a fresh interpreter after this code."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return set(result.stdout.split())


def test_resolve_loads_nothing_heavy() -> None:
    loaded = modules_after("import stages.resolve, stages.profile")
    assert not loaded & {"torch", "datasets", "pyarrow", "tokenizers", "pandas", "gradio", "matplotlib"}
    assert "yaml" in loaded, "the test looks at what resolve loaded"


def test_imports_open_no_thread_device_or_process_group() -> None:
    names = ", ".join(f"stages.{file.stem}" for file in (ROOT / "stages").glob("*.py"))
    modules_after(
        f"import threading, torch, torch.distributed as dist, {names}\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert not dist.is_initialized() and not torch.cuda.is_initialized()\n"
    )
