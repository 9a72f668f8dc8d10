"""Which trained models there are, and one loaded copy of each for all tabs to share.

A run is a folder with `model.safetensors`, `config.json` and `tokenizer.json`, as published to
`runs/<profile>/<stage>/`. Finding them reads no weights and imports no torch, so the page is up before it does.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.reply import ChatModel, Settings
from config.errors import UserError
from config.paths import TRAINING_STAGES
from config.profile import read_params

WEIGHTS, CONFIG = "model.safetensors", "config.json"
STAGE_LABELS = {"pretrain": "base", "midtrain": "mid", "sft": "chat (sft)"}
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Run:
    """A published model: its folder and what to call it."""

    folder: Path
    label: str
    stage: str | None = None  # one of TRAINING_STAGES where the folder is named so

    @property
    def published(self) -> float:
        """When its weights were written, in unix seconds; 0 if they are gone."""
        return self.version[0]

    @property
    def version(self) -> tuple[float, int, int]:
        """Differs once other weights lie in the folder: training again replaces the file, and DVC swaps it."""
        try:
            found = (self.folder / WEIGHTS).stat()
        except OSError:
            return 0.0, 0, 0
        return found.st_mtime, found.st_ino, found.st_size


def holds_model(folder: Path) -> bool:
    """Whether a whole model lies here; config.json is written last."""
    return (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file()


def find_runs(root: Path = ROOT) -> list[Run]:
    """Every published model below `root/runs`: profiles by name, each from its last stage to its first."""
    return [
        Run(folder, f"{profile.name} · {STAGE_LABELS[stage]}", stage)
        for profile in sorted((root / "runs").glob("*"))
        for stage in reversed(TRAINING_STAGES)
        if holds_model(folder := profile / stage)
    ]


def choose(runs: list[Run], root: Path = ROOT) -> Run:
    """The run to open with: of the profile in params.yaml if it has any, else of the newest one; its last stage."""
    if not runs:
        raise UserError(f"found no trained model in {root / 'runs'}: run `dvc repro` (or `make chat`) to train one")
    try:
        wanted, _ = read_params(root)
    except UserError:  # a params.yaml that cannot be read stops training, but must not stop a chat
        wanted = None
    newest = max(runs, key=lambda run: run.published)
    profile = wanted if any(run.folder.parent.name == wanted for run in runs) else newest.folder.parent.name
    return next(run for run in runs if run.folder.parent.name == profile)


def open_run(folder: Path) -> Run:
    """The run in a folder the user named; a profile's folder stands for its last stage. UserError if none is there."""
    for candidate in (folder, *(folder / stage for stage in reversed(TRAINING_STAGES))):
        if holds_model(candidate):
            path = candidate.resolve()
            stage = path.name if path.name in STAGE_LABELS else None
            label = f"{path.parent.name} · {STAGE_LABELS[stage]}" if stage else path.name
            return Run(path, label, stage)
    raise UserError(
        f"found no {WEIGHTS} and {CONFIG} in {folder}: expected a run such as runs/tiny/sft, made by `dvc repro`"
    )


def describe(run: Run) -> str:
    """One line on a model, of what its config.json tells: parameters, context, tokens read by it in all its stages."""
    config = _read_config(run.folder)
    known = []
    if parameters := _lookup(config, "parameters"):
        known.append(f"{_short(parameters)} parameters")
    if context := _lookup(config, "context"):
        known.append(f"context {context:,} tokens")
    if tokens := _lookup(config, "tokens"):
        earlier = TRAINING_STAGES[: TRAINING_STAGES.index(run.stage)] if run.stage else ()
        tokens += sum(_lookup(_read_config(run.folder.with_name(stage)), "tokens") for stage in earlier)
        known.append(f"trained on {_short(tokens)} tokens")
    return " · ".join(known)


def _read_config(folder: Path) -> Any:
    """A run's config.json; None where there is none to be read."""
    try:
        return json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _lookup(config: Any, key: str) -> int:
    """A positive number under `key`, at the top or one level down; 0 if there is none."""
    if not isinstance(config, dict):
        return 0
    for level in (config, *(value for value in config.values() if isinstance(value, dict))):
        value = level.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return int(value)
    return 0


def _short(number: int) -> str:
    """1234567 as "1.2 M"."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def load(folder: Path) -> ChatModel:
    """Load published weights for chatting, on the GPU if there is one. UserError if the folder is broken."""
    import torch  # here, because the page starts without it

    from data.calculator import CalculatorTool
    from data.tokenizer import Tokenizer
    from model import publish
    from model.engine import Engine, Sampling

    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    model = publish.load(folder, device="cuda" if torch.cuda.is_available() else "cpu")
    engine = Engine(model, tokenizer.reply_ends, CalculatorTool(tokenizer))  # each call has a cache of its own

    def stream(prompt: list[int], settings: Settings) -> Iterator[int]:
        sampling = Sampling(
            temperature=settings.temperature,
            top_k=settings.top_k,
            seed=settings.seed,
            max_tokens=settings.max_tokens,
        )
        with torch.inference_mode():
            yield from engine.stream(prompt, sampling)

    return ChatModel(tokenizer, engine.context, stream)


class ModelCache:
    """Loaded models by folder, the last few used. A run that was trained again since is loaded again.

    One lock a folder, so that two tabs load a model once, and neither waits for the other's model.
    """

    def __init__(self, load: Callable[[Path], ChatModel] = load, keep: int = 3):
        self._load = load
        self._keep = keep
        self._models: OrderedDict[Path, tuple[tuple[float, int, int], ChatModel]] = OrderedDict()
        self._locks: dict[Path, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, run: Run) -> ChatModel:
        """The run's model, loaded if need be."""
        with self._lock:
            lock = self._locks.setdefault(run.folder, threading.Lock())
        with lock:
            version = run.version
            with self._lock:
                known = self._models.get(run.folder)
                if known and known[0] == version:
                    self._models.move_to_end(run.folder)
                    return known[1]
            model = self._load(run.folder)
            with self._lock:
                self._models[run.folder] = (version, model)
                self._models.move_to_end(run.folder)
                while len(self._models) > self._keep:
                    self._models.popitem(last=False)
            return model
