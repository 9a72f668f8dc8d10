"""Whatever is wrong with what the user gives: one clear line, a status that is not 0, and nothing lost."""

import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import MINI, Clone, Done

pytestmark = pytest.mark.pipeline


@pytest.fixture
def clone(trained: Clone, tmp_path: Path) -> Clone:
    """A copy of the trained clone, to be spoilt."""
    return trained.copy(tmp_path / "clone")


def refused(done: Done, *words: str) -> None:
    """The command failed with one line, and that line says what is asked for."""
    assert done.status not in (0, None) and "Traceback" not in done.text, done.text
    assert len(done.errors) == 1 and done.err.strip().splitlines()[-1:] == done.errors, done.text
    for word in words:
        assert word in done.errors[0], done.errors[0]


def files(clone: Clone, folder: str = "runs") -> dict[str, str]:
    """What lies in a folder: each file's hash."""
    found = sorted(path for path in (clone.path / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(clone.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def with_data(**mixtures: list[dict[str, Any]]) -> dict[str, Any]:
    return MINI | {"data": MINI["data"] | mixtures}


# Profiles


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sft": {"learnign_rate": 0.1}}, ["profiles/bad.yaml:3:", "`sft.learnign_rate`", "`learning_rate`"]),
        ({"sft": {"learning_rate": "fast"}}, ["profiles/bad.yaml:3:", "`sft.learning_rate`", "'fast'", "number"]),
        ({"sft": {"batch_tokens": 100}}, ["profiles/bad.yaml:3:", "100", "64"]),
        ({"model": {"heads": 3}}, ["profiles/bad.yaml:2:", "model", "32 over 3 heads"]),
        ({"evaluate": {"tasks": {"calcualtor": 0.5}}}, ["profiles/bad.yaml:4:", "`calcualtor`", "`calculator`"]),
        ({"extends": "smok"}, ["profiles/bad.yaml:1:", "`smok`", "`smoke`"]),
        ({"data": {"sft": []}}, ["profiles/bad.yaml:3:", "data.sft"]),
        ({"data": {"sft": [{"path": "nowhere/at/all.txt"}]}}, ["nowhere/at/all.txt", "no such file"]),
        ({"data": {"sft": [{"path": "empty folder"}]}}, ["empty folder", "without a file to read", ".txt"]),
        ({"data": {"sft": [{"path": "docs/*.nothing"}]}}, ["docs/*.nothing", "matches no file"]),
    ],
)
def test_a_mistake_in_a_profile_is_told_before_any_work(trained: Clone, change: dict, words: list[str]) -> None:
    (trained.path / "empty folder").mkdir(exist_ok=True)
    trained.profile("bad", {"extends": "mini"} | change)
    before = files(trained)
    refused(trained.python("stages.resolve", "bad"), *words)
    assert files(trained) == before
    (trained.path / "profiles" / "bad.yaml").unlink()


def test_through_dvc_the_line_is_there_too_and_earlier_runs_stay(trained: Clone, clone: Clone) -> None:
    for overrides, words in (
        ({"sft": {"tokens": "many"}}, ["params.yaml:4:", "`sft.tokens`", "'many'"]),
        ({"sfd": {"tokens": 5}}, ["params.yaml:3:", "`sfd`", "`sft`"]),
    ):
        clone.params("mini", overrides)
        done = clone.python("dvc", "repro")
        assert done.status != 0 and "Traceback" not in done.text
        assert len(done.errors) == 1 and all(word in done.errors[0] for word in words), done.text
    clone.params("mine")
    done = clone.python("dvc", "repro")
    assert done.status != 0 and done.errors == [
        "error: no profile `mine`; did you mean `mini`? "
        "There are: gpu-d12, h200-d20, h200-d24, local, mini, smoke, tiny"
    ]
    assert clone.weights("mini") == trained.weights("mini")
    clone.params("mini")
    assert clone.repro().stages == ["resolve"]


# Texts


def test_a_corpus_of_nothing(clone: Clone) -> None:
    (clone.path / "nothing.txt").write_text(" \n")
    nothing = [{"path": "nothing.txt"}]
    clone.profile("bad", with_data(pretrain=nothing, midtrain=nothing, sft=nothing))
    assert clone.python("stages.resolve", "bad").status == 0
    refused(clone.python("stages.tokenize", "bad"), "no text")
    clone.profile("bad", with_data(pretrain=nothing))
    assert clone.python("stages.resolve", "bad").status == 0
    assert clone.python("stages.tokenize", "bad").status == 0
    refused(clone.python("stages.shard", "bad"), "data.pretrain", "1 empty")


def test_a_corpus_of_one_tiny_document_trains(fresh: Clone) -> None:
    (fresh.path / "one.txt").write_text("A cat sat on a mat. A cat sat.")
    (fresh.path / "one.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi, hi!"}]})
    )
    tiny = with_data(pretrain=[{"path": "one.txt"}], midtrain=[{"path": "one.jsonl"}], sft=[{"path": "one.jsonl"}])
    few = {stage: {"tokens": 1024, "batch_tokens": 512, "micro_batch": 8} for stage in TRAINING_STAGES}
    fresh.profile("one", tiny | few | {"tokenizer": {"vocab_size": 266}, "evaluate": {"prompts": 5, "max_tokens": 4}})
    fresh.params("one")
    assert fresh.repro("evaluate").stages[-1] == "evaluate"
    for stage in TRAINING_STAGES:
        assert fresh.json("runs", "one", "metrics", f"{stage}.json")["loss"] > 0
    assert "not held out" in fresh.json("runs", "one", "shards", "pretrain.json")["validation"]


def test_a_vocabulary_that_the_text_does_not_support(clone: Clone) -> None:
    clone.profile("bad", MINI | {"tokenizer": {"vocab_size": 60_000, "sample_megabytes": 0.1}})
    assert clone.python("stages.resolve", "bad").status == 0
    refused(clone.python("stages.tokenize", "bad"), "tokenizer.vocab_size is 60,000", "at most")


def test_a_file_that_is_not_utf8(clone: Clone) -> None:
    (clone.path / "latin.txt").write_bytes("Ein schöner Tag".encode("latin1"))
    clone.profile("bad", with_data(pretrain=[{"path": "latin.txt"}]))
    assert clone.python("stages.resolve", "bad").status == 0
    refused(clone.python("stages.tokenize", "bad"), "latin.txt", "not UTF-8", "offset 7")


# What lies on the disk


def unfinished(clone: Clone, stage: str) -> Path:
    """Make a finished stage look cut off after its last checkpoint was written; its folder of checkpoints."""
    (work,) = clone.paths("mini").work.glob(f"{stage}-*")
    state = json.loads((work / "state.json").read_text())
    (work / "state.json").write_text(json.dumps(state | {"finished": False}))
    return work / "checkpoints"


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def test_a_truncated_shard_is_named_and_the_advice_helps(trained: Clone, clone: Clone) -> None:
    for path in clone.paths("mini").work.glob("pretrain-*/checkpoints/*"):
        path.rename(path.with_name(f"gone-{path.name}"))
    shard = (
        clone.path
        / ".work"
        / "shards"
        / clone.json("runs", "mini", "shards", "pretrain.json")["splits"]["train"]["files"][0]["name"]
    )
    shorten(shard)
    before = files(clone)
    done = clone.python("stages.launch", "pretrain", "mini")
    refused(done, str(shard), "truncated", "dvc repro --force --single-item shard")
    assert files(clone) == before
    clone.repro("--force", "--single-item", "shard")
    done = clone.python("stages.launch", "pretrain", "mini")
    assert done.status == 0, done.text
    assert clone.weights("mini") == trained.weights("mini")


def test_a_truncated_checkpoint_is_passed_over(trained: Clone, clone: Clone) -> None:
    checkpoints = unfinished(clone, "midtrain")
    shorten(next((checkpoints / "step-00000040").glob("*.distcp")))
    (clone.paths("mini").model("midtrain") / "model.safetensors").unlink()
    done = clone.python("stages.launch", "midtrain", "mini")
    assert done.status == 0, done.text
    assert "checkpoint passed over" in done.out and "goes on from update 35" in done.out
    assert clone.weights("mini") == trained.weights("mini")

    for step in (35, 40):
        shorten(next((checkpoints / f"step-{step:08d}").glob("*.distcp")))
    before = files(clone)
    refused(clone.python("stages.launch", "midtrain", "mini"), "no whole checkpoint is left", "delete")
    assert files(clone) == before


def test_a_checkpoint_of_another_fingerprint(clone: Clone) -> None:
    manifest = unfinished(clone, "sft") / "step-00000040" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    before = files(clone)
    refused(clone.python("stages.launch", "sft", "mini"), str(manifest.parent.relative_to(clone.path)), "another run")
    assert files(clone) == before


def test_published_weights_that_are_cut_off(clone: Clone) -> None:
    weights = clone.paths("mini").model("pretrain") / "model.safetensors"
    shorten(weights)
    refused(clone.python("stages.launch", "midtrain", "mini"), "pretrain/model.safetensors", "dvc repro")


# The page


def test_a_chat_without_a_run(fresh: Clone) -> None:
    refused(fresh.python("app.cli", "-p", "Hello!"), "no trained model", "dvc repro")
    refused(fresh.python("app.chat"), "no trained model", "dvc repro")
    refused(fresh.python("app.chat", "--run", "runs/none/sft"), "runs/none/sft", "dvc repro")


def test_a_port_in_use(trained: Clone) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused(trained.python("app.chat", "--port", str(port)), f"port {port}", "in use", "--port")


def test_without_git_dvc_says_so(fresh: Clone) -> None:
    """Its own words: it looks before any code of ours runs. The README says how to mend it."""
    (fresh.path / ".git").rename(fresh.path.with_name("git"))
    done = fresh.python("dvc", "repro")
    assert done.status != 0 and "is not a git repository" in done.err
