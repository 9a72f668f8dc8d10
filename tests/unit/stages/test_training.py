"""A training stage from the profile to its outs: resumed, finished, published, and never trained for nothing."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from config.errors import UserError
from config.paths import RunPaths
from model import publish
from stages import training
from stages.training import code_hash, run_fingerprint, run_stage
from tests.little_repository import current
from tests.small_job import Killed
from training.optim.optimizer import Optimizer
from training.telemetry import read_events

PATHS = RunPaths("little")
UPDATES = 8  # of pretrain


def change(section: str, **values: object) -> None:
    """Edit the resolved profile, as another override would."""
    profile = yaml.safe_load(PATHS.resolved.read_text())
    profile[section] = (profile[section] or {}) | values
    PATHS.resolved.write_text(yaml.safe_dump(profile))


def weights(stage: str = "pretrain") -> bytes:
    return (PATHS.model(stage) / "model.safetensors").read_bytes()


def events(stage: str = "pretrain") -> list[dict]:
    return read_events(PATHS.events(stage))


def forget_outs(stage: str = "pretrain") -> None:
    """What DVC does before it runs a stage."""
    shutil.rmtree(PATHS.model(stage))
    for path in (PATHS.events(stage), PATHS.metrics(stage), PATHS.plot(stage)):
        path.unlink()


def die_at(monkeypatch: pytest.MonkeyPatch, number: int, how=None) -> pytest.MonkeyPatch:
    """Have the `number`-th optimizer step from now end the process, or do something else."""
    calls = 0
    step = Optimizer.step

    def counted(self: Optimizer, *factors: float) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            if how is None:
                raise Killed
            how()
        step(self, *factors)

    monkeypatch.setattr(Optimizer, "step", counted)
    return monkeypatch


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory) -> bytes:
    """Pretrain's weights when nothing happens."""
    root = tmp_path_factory.mktemp("undisturbed") / "repository"
    shutil.copytree(made, root, symlinks=True)
    with current(root):
        assert run_stage("pretrain") == 0
        return weights()


def test_the_three_stages_write_what_dvc_expects(repository: Path) -> None:
    for stage in ("pretrain", "midtrain", "sft"):
        assert run_stage(stage) == 0
        expected = set(yaml.safe_load(Path("dvc.yaml").read_text())["stages"][stage]["outs"])
        assert all(Path(out.replace("${profile}", "little")).exists() for out in expected)
        assert {path.name for path in PATHS.model(stage).iterdir()} == {
            "model.safetensors",
            "config.json",
            "tokenizer.json",
        }
        assert (PATHS.model(stage) / "tokenizer.json").read_bytes() == PATHS.tokenizer.read_bytes()
        metrics = json.loads(PATHS.metrics(stage).read_text())
        assert metrics["updates"] == (UPDATES if stage == "pretrain" else 4)
        assert 1 < metrics["loss"] < 6 and 1 < metrics["bits_per_byte"] < 9 and metrics["tok_s"] > 0
        rows = list(csv.DictReader(PATHS.plot(stage).open()))
        assert int(rows[-1]["step"]) == metrics["updates"] and float(rows[-1]["loss"]) == metrics["loss"]
        kinds = {event["event"] for event in events(stage)}
        assert kinds == {"start", "log", "validation", "sample", "checkpoint", "end"}
    assert json.loads((PATHS.work / "current.json").read_text())["stage"] == "sft"
    assert len({weights(stage) for stage in ("pretrain", "midtrain", "sft")}) == 3


def test_pretrain_answers_with_text_that_goes_on_and_sft_with_a_reply(repository: Path) -> None:
    run_stage("pretrain")
    samples = [event for event in events() if event["event"] == "sample"]
    assert [event["step"] for event in samples] == [2, 8] and {event["prompt"] for event in samples} == {
        "The capital of"
    }
    assert all(set(part) == {"type", "text"} for event in samples for part in event["reply"])


def test_a_finished_run_is_published_again_without_training(repository: Path, monkeypatch) -> None:
    run_stage("pretrain")
    before, logged = weights(), [event for event in events() if event["event"] == "log"]
    forget_outs()
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained for nothing"))
    run_stage("pretrain")
    assert weights() == before and [event for event in events() if event["event"] == "log"] == logged


@pytest.mark.parametrize("number", [1, 3, 4, 8])
def test_killed_in_any_update_it_ends_in_the_same_weights(
    repository: Path, monkeypatch, undisturbed: bytes, number: int
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        die_at(patch, number)
        run_stage("pretrain")
    assert not PATHS.model("pretrain").exists()
    run_stage("pretrain")
    assert weights() == undisturbed
    steps = [event["step"] for event in events() if event["event"] == "log"]
    assert steps == [2, 3, 4, 6, 8]
    resumed = [event["step"] for event in events() if event["event"] == "resume"]
    assert resumed == {1: [], 3: [], 4: [3], 8: [6]}[number]
    assert [event["event"] for event in events()].count("start") == 1


@pytest.mark.parametrize("moment", ["finish", "publish_stage"])
def test_killed_after_the_last_update_it_only_publishes(
    repository: Path, monkeypatch, undisturbed: bytes, moment: str
) -> None:
    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(*((training.WorkFolder, "finish", die) if moment == "finish" else (training, moment, die)))
        run_stage("pretrain")
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    run_stage("pretrain")
    assert weights() == undisturbed


def test_a_signal_saves_and_ends_with_143(repository: Path, monkeypatch, capsys, undisturbed: bytes) -> None:
    with monkeypatch.context() as patch:
        die_at(patch, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert run_stage("pretrain") == 143
    assert "SIGTERM received: saved at update" in capsys.readouterr().out
    assert not PATHS.model("pretrain").exists()
    assert run_stage("pretrain") == 0
    assert weights() == undisturbed


def test_a_changed_parameter_trains_apart_and_setting_it_back_finds_the_old_run(
    repository: Path, monkeypatch, undisturbed: bytes
) -> None:
    run_stage("pretrain")
    change("pretrain", learning_rate=0.03)
    run_stage("pretrain")
    assert weights() != undisturbed
    change("pretrain", learning_rate=0.02)  # the default, but written out: another fingerprint
    change("run", log_updates=1)
    profile = yaml.safe_load(PATHS.resolved.read_text())
    del profile["pretrain"]["learning_rate"]
    PATHS.resolved.write_text(yaml.safe_dump(profile))
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    run_stage("pretrain")
    assert weights() == undisturbed


def test_the_fingerprint_holds_what_decides_the_weights_and_no_more(repository: Path) -> None:
    first = run_fingerprint("pretrain", PATHS)
    for section in ("run", "evaluate", "sft", "tokenizer"):
        change(section, anything=1)
        assert run_fingerprint("pretrain", PATHS) == first, section
    seen = {first}
    for section, values in (("pretrain", {"seed": 1}), ("model", {"softcap": 14.0}), ("data", {"context": 64})):
        change(section, **values)
        seen.add(run_fingerprint("pretrain", PATHS))
    PATHS.manifest("pretrain").write_text(PATHS.manifest("pretrain").read_text() + " ")
    seen.add(run_fingerprint("pretrain", PATHS))
    assert len(seen) == 5


def test_midtrain_depends_on_the_weights_it_starts_from(repository: Path) -> None:
    with pytest.raises(UserError, match=r"pretrain/config\.json is missing \(a published model\); run `dvc repro`"):
        run_fingerprint("midtrain", PATHS)
    run_stage("pretrain")
    first = run_fingerprint("midtrain", PATHS)
    change("midtrain", learning_rate=1e-9, embedding_ratio=0.0)
    run_stage("midtrain")
    for name, tensor in load_file(PATHS.model("midtrain") / "model.safetensors").items():
        start = load_file(PATHS.model("pretrain") / "model.safetensors")[name]
        assert (tensor - start).abs().max() < 1e-6, "it starts from pretrain's weights"
    model = publish.load(PATHS.model("pretrain"))
    model.head.weight.data.mul_(2)
    publish.publish(PATHS.model("pretrain"), model, "{}", {})
    assert run_fingerprint("midtrain", PATHS) != first


def test_a_parent_of_another_shape_is_one_line(repository: Path) -> None:
    run_stage("pretrain")
    change("model", layers=3)
    with pytest.raises(UserError, match="pretrain has another shape than the profile asks for") as caught:
        run_stage("midtrain")
    assert "\n" not in str(caught.value)


def test_code_that_changed_is_noticed(repository: Path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        die_at(patch, 5)
        run_stage("pretrain")
    monkeypatch.setattr(training, "code_hash", lambda _: "other")
    run_stage("pretrain")
    (resume,) = [event for event in events() if event["event"] == "resume"]
    assert resume["code_changed"] is True and resume["step"] == 3
    monkeypatch.setattr(training, "code_hash", lambda _: "third")
    run_stage("pretrain")
    assert "the code has changed since this run finished; it starts anew" in capsys.readouterr().out
    assert not [event for event in events() if event["event"] == "resume"]


def test_the_code_hash_follows_the_deps_of_dvc_yaml(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {pretrain: {deps: [a.py, pack, data.bin]}}")
    for name in ("a.py", "b.py", "pack/c.py"):
        (tmp_path / name).write_text("x = 1")
    (tmp_path / "data.bin").write_bytes(b"1")
    first = code_hash("pretrain", tmp_path)
    (tmp_path / "b.py").write_text("x = 2")
    (tmp_path / "data.bin").write_bytes(b"2")
    assert code_hash("pretrain", tmp_path) == first
    (tmp_path / "pack" / "c.py").write_text("x = 2")
    assert code_hash("pretrain", tmp_path) != first


def test_a_truncated_shard_is_one_line_before_any_update(repository: Path, monkeypatch) -> None:
    manifest = json.loads(PATHS.manifest("pretrain").read_text())
    entry = manifest["splits"]["train"]["files"][0]
    folder = repository / "shards"
    shutil.copytree(manifest["folder"], folder)
    manifest["folder"] = str(folder)
    PATHS.manifest("pretrain").write_text(json.dumps(manifest))
    os.truncate(folder / entry["name"], 100)
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained on a damaged shard"))
    with pytest.raises(UserError, match="truncated: 100 bytes, expected"):
        run_stage("pretrain")


def test_only_the_first_rank_may_write(repository: Path) -> None:
    """Two starts at once: the second waits for the lock, or is refused."""
    work = training.WorkFolder(PATHS, "pretrain", "other")
    with pytest.MonkeyPatch.context() as patch, work.locked():
        patch.setattr("stages.process.LOCK_WAIT_S", 0)
        with pytest.raises(UserError, match=f"process {os.getpid()} already runs pretrain of little"):
            run_stage("pretrain")
