import json
import os
import threading
import time
from pathlib import Path

import pytest

from app.reply import Settings
from app.runs import ModelCache, Run, choose, describe, find_runs, load, open_run
from config.errors import UserError
from tests.unit.app.tiny_model import CONTEXT, publish_tiny


def lay(root: Path, profile: str, stage: str, age: float = 0) -> Path:
    folder = root / "runs" / profile / stage
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    weights = folder / "model.safetensors"
    weights.write_bytes(b"")
    os.utime(weights, (time.time() - age,) * 2)
    return folder


def test_runs_are_found_with_plain_labels(tmp_path: Path):
    for stage in ("pretrain", "midtrain", "sft"):
        lay(tmp_path, "tiny", stage)
    lay(tmp_path, "local", "pretrain")
    (tmp_path / "runs" / "tiny" / "metrics").mkdir()
    half = tmp_path / "runs" / "half" / "sft"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"")  # config.json, written last, is not there yet
    labels = [run.label for run in find_runs(tmp_path)]
    assert labels == ["local · base", "tiny · chat (sft)", "tiny · mid", "tiny · base"]
    assert find_runs(tmp_path / "elsewhere") == []


def test_the_profile_in_params_comes_first_then_the_newest(tmp_path: Path):
    lay(tmp_path, "tiny", "pretrain", age=50)
    lay(tmp_path, "tiny", "sft", age=40)
    lay(tmp_path, "smoke", "sft", age=30)
    lay(tmp_path, "local", "midtrain", age=20)
    runs = find_runs(tmp_path)
    assert choose(runs, tmp_path).label == "local · mid"
    for profile, label in (("tiny", "tiny · chat (sft)"), ("absent", "local · mid")):
        (tmp_path / "params.yaml").write_text(f"profile: {profile}\n")
        assert choose(runs, tmp_path).label == label
    (tmp_path / "params.yaml").write_text("profile: [\n")
    assert choose(runs, tmp_path).label == "local · mid"


def test_no_run_is_one_clear_line(tmp_path: Path):
    with pytest.raises(UserError, match="dvc repro"):
        choose(find_runs(tmp_path), tmp_path)
    with pytest.raises(UserError, match=r"runs/tiny/sft"):
        open_run(tmp_path)


def test_a_folder_or_its_profile_is_opened(tmp_path: Path):
    lay(tmp_path, "tiny", "midtrain")
    folder = lay(tmp_path, "tiny", "sft")
    assert open_run(folder) == open_run(folder.parent) == Run(folder, "tiny · chat (sft)", "sft")
    copy = folder.rename(tmp_path / "mine")
    assert open_run(copy) == Run(copy, "mine")


def test_a_run_is_described_as_far_as_it_is_known(tmp_path: Path):
    folder = lay(tmp_path, "tiny", "sft")
    run = open_run(folder)
    assert describe(run) == ""
    config = {"format": 1, "model": {"context": 2048}, "training": {"parameters": 896_500_000, "tokens": 5_200_000_000}}
    (folder / "config.json").write_text(json.dumps(config))
    assert describe(run) == "896 M parameters · context 2,048 tokens · trained on 5.2 B tokens"
    before = lay(tmp_path, "tiny", "pretrain")
    (before / "config.json").write_text(json.dumps({"training": {"tokens": 800_000_000}}))
    assert describe(run).endswith("trained on 6 B tokens")
    (folder / "config.json").write_text("{")
    assert describe(run) == ""


def test_a_model_is_loaded_once_for_all_and_again_when_retrained(tmp_path: Path):
    loads = []

    def slow_load(folder: Path) -> object:
        time.sleep(0.1)
        loads.append(folder.name)
        return object()

    run = open_run(lay(tmp_path, "tiny", "sft"))
    cache = ModelCache(slow_load)
    got = []
    threads = [threading.Thread(target=lambda: got.append(cache.get(run))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == ["sft"] and len(got) == 4 and len(set(map(id, got))) == 1
    (run.folder / "model.safetensors").write_bytes(b"other")
    assert cache.get(run) is not got[0] and loads == ["sft", "sft"]


def test_only_the_last_few_models_are_kept(tmp_path: Path):
    loads = []
    cache = ModelCache(lambda folder: loads.append(folder.name) or object(), keep=2)
    runs = [open_run(lay(tmp_path, "tiny", stage)) for stage in ("pretrain", "midtrain", "sft")]
    for index in (0, 1, 0, 2, 0, 1):
        cache.get(runs[index])
    assert loads == ["pretrain", "midtrain", "sft", "midtrain"]


def test_a_failed_load_is_tried_again(tmp_path: Path):
    answers = iter([UserError("broken"), "model"])

    def load(folder: Path) -> object:
        answer = next(answers)
        if isinstance(answer, UserError):
            raise answer
        return answer

    run = open_run(lay(tmp_path, "tiny", "sft"))
    cache = ModelCache(load)
    with pytest.raises(UserError, match="broken"):
        cache.get(run)
    assert cache.get(run) == "model"


def test_a_published_model_talks(tmp_path: Path):
    model = load(publish_tiny(tmp_path / "sft"))
    assert model.context == CONTEXT
    prompt = [model.tokenizer.bos, model.tokenizer.user_start]
    one, two, other = (list(model.stream(prompt, Settings(1.0, seed=seed, max_tokens=20))) for seed in (3, 3, 4))
    assert one == two != other and 0 < len(one) <= 20


def test_a_broken_model_is_a_user_error(tmp_path: Path):
    folder = publish_tiny(tmp_path / "sft")
    (folder / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load(folder)
