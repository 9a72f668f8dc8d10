"""What the three training stages share: read the profile, build, train or resume, publish."""

import csv
import hashlib
import io
import os
import platform
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from config.errors import UserError
from config.files import read_json, sha256_of, write_atomic, write_json
from config.paths import TRAINING_STAGES, RunPaths
from config.profile import read_section, read_yaml
from config.run import RunConfig
from data.config import DataConfig
from data.loader import Loader
from data.manifest import read_manifest, verify_once
from data.rows import Rows
from data.tokenizer import Tokenizer
from model import publish
from model.config import ModelConfig, flops_per_token, matmul_parameters, shape
from stages.hooks import Watch, hooks
from stages.process import WorkFolder, fingerprint, start
from training.assemble import Assembled, assemble
from training.checkpoint import FORMAT, Checkpoints, Position
from training.config import TrainConfig
from training.distributed import Ranks, join, leave
from training.loop import Job, StoppedError, train
from training.telemetry import Telemetry, read_events

PLOT_COLUMNS = ("step", "tokens", "loss", "lr", "tok_s", "tflops")


@dataclass(frozen=True)
class Sections:
    """The sections of the profile that a training stage reads."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    run: RunConfig


def run_stage(stage: str) -> int:
    """Run a training stage for the profile named on the command line; returns 0, or 143 when stopped and saved."""
    paths = start(stage)
    sections = Sections(
        model=read_section(paths, "model", ModelConfig),
        data=read_section(paths, "data", DataConfig),
        train=read_section(paths, stage, TrainConfig),
        run=read_section(paths, "run", RunConfig),
    )
    ranks = join()
    try:
        set_threads(sections.run, ranks)
        tokenizer = Tokenizer.load(paths.tokenizer)
        work = WorkFolder(paths, stage, run_fingerprint(stage, paths))
        # The first rank alone holds the lock; the others wait until the folder is there.
        with work.locked() if ranks.first else nullcontext():
            state = work.open(code_hash(stage)) if ranks.first else {}
            ranks.barrier()
            _train(stage, sections, paths, ranks, work, tokenizer, state)
            ranks.barrier()
        return 0
    except StoppedError as stopped:
        if ranks.first:
            print(f"{stage}: {stopped}", flush=True)
        return 143
    except (UserError, RuntimeError) as error:
        # A mistake is mostly everyone's, and a lost connection another rank's fault: the first, or the one that failed,
        # says what it was, and torchrun ends those that wait here.
        if ranks.world > 1 and not (ranks.first and isinstance(error, UserError)):
            time.sleep(2)
        raise
    finally:
        leave(ranks)


def set_threads(run: RunConfig, ranks: Ranks) -> None:
    """Share the CPU's cores among the ranks of this machine, or take as many as the profile says."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(run.threads or max(1, cores // ranks.world))


def run_fingerprint(stage: str, paths: RunPaths) -> str:
    """Hash of everything that decides the weights: parameters, shards, the weights started from, checkpoint format."""
    upstream = {"shards": sha256_of(paths.manifest(stage))}
    if (parent := parent_of(stage)) is not None:
        publish.read_config(paths.model(parent))
        upstream["parent"] = sha256_of(paths.model(parent) / "model.safetensors")
    values, _ = read_yaml(paths.resolved)
    # As the profile has them, without what defaults add: just what DVC tracks.
    parameters = {"model": values["model"], "context": values["data"]["context"], stage: values[stage]}
    return fingerprint({"format": FORMAT, "stage": stage, "parameters": parameters, "upstream": upstream})


def _train(
    stage: str,
    sections: Sections,
    paths: RunPaths,
    ranks: Ranks,
    work: WorkFolder,
    tokenizer: Tokenizer,
    state: dict[str, Any],
) -> None:
    config, run, context = sections.train, sections.run, sections.data.context
    gpt = shape(sections.model, tokenizer.vocab_size, context)
    rows_per_update, updates = config.rows(context), config.updates(context)
    parent = parent_of(stage)
    kept = work.path / "precision.json"  # what this run's first start chose by measuring
    choices = read_json(kept, "the formats of this run") if kept.exists() else None
    parts = assemble(sections.model, gpt, config, ranks, paths.model(parent) if parent else None, choices)
    if ranks.first and choices is None:
        write_json(kept, parts.choices)
    checkpoints = Checkpoints(work.path / "checkpoints", work.mark, run.keep_checkpoints, ranks)
    telemetry = Telemetry(work.path / "events.jsonl", stage, ranks.first)
    position = checkpoints.load_newest(parts.model, parts.optimizer) or Position(0)
    telemetry.rewind(position.step)
    facts = {
        "stage": stage,
        "parameters": sum(parameter.numel() for parameter in parts.model.parameters()),
        "matmul_parameters": matmul_parameters(gpt),
        "updates": updates,
        "tokens_per_update": rows_per_update * context,
        "ranks": ranks.world,
        "compiled": parts.compiled,
        "precision": parts.recipe.name,
        "attention": parts.attention.name,
        "device": device_name(ranks.device),
    }
    if position.step == 0:
        telemetry.event("start", **facts, versions=versions(), machine=machine())
    else:
        changed = bool(state.get("code_changed"))
        telemetry.event("resume", step=position.step, code_changed=changed, ranks=ranks.world)
    announce(telemetry, facts, parts, position)
    if position.step < updates:
        if ranks.first:
            verify_once(read_manifest(paths.manifest(stage)))
        loader = Loader(
            Rows(paths.manifest(stage), "train"),
            rows_per_update,
            min(config.micro_batch, -(-rows_per_update // ranks.world)),  # no rows of padding where a rank gets few
            ranks.rank,
            ranks.world,
            config.seed,
            start=position.step,
            slots=run.loader_slots,
            threads=run.loader_threads,
            device=ranks.device,
        )
        watch = Watch(stage, parts.model, tokenizer, telemetry, updates)
        job = Job(
            stage=stage,
            config=config,
            updates=updates,
            tokens_per_update=rows_per_update * context,
            flops_per_token=flops_per_token(gpt),
            model=parts.model,
            loss_sum=parts.loss_sum,
            optimizer=parts.optimizer,
            ranks=ranks,
            checkpoints=checkpoints,
            telemetry=telemetry,
            log_updates=run.log_updates,
            checkpoint_updates=run.checkpoint_updates,
            hooks=hooks(watch, run, Rows(paths.manifest(stage), "validation")) if ranks.first else (),
        )
        with loader:
            remaining = islice(loader, updates - position.step)
            position = train(job, position, remaining, lambda: loader.waited_seconds)
        telemetry.event("end", step=position.step, loss=position.loss)
    if ranks.first:
        work.finish()
        tokens = updates * rows_per_update * context
        training = {"stage": stage, "profile": paths.profile, "updates": updates, "tokens": tokens}
        publish_stage(stage, paths, work, parts, training | {"parameters": facts["parameters"]})


def publish_stage(stage: str, paths: RunPaths, work: WorkFolder, parts: Assembled, training: dict[str, Any]) -> None:
    """Write the stage's outs. The weights go first: what follows can be made again in seconds."""
    publish.publish(paths.model(stage), parts.model, paths.tokenizer.read_text(encoding="utf-8"), training)
    events = read_events(work.path / "events.jsonl")
    paths.events(stage).parent.mkdir(parents=True, exist_ok=True)
    write_atomic(paths.events(stage), (work.path / "events.jsonl").read_bytes())
    logs = [event for event in events if event["event"] == "log"]
    validations = [event for event in events if event["event"] == "validation"]
    table = io.StringIO()
    writer = csv.DictWriter(table, PLOT_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(logs)
    write_atomic(paths.plot(stage), table.getvalue())
    metrics = {
        "loss": logs[-1]["loss"] if logs else None,
        "bits_per_byte": validations[-1]["bits_per_byte"] if validations else None,
        "updates": training["updates"],
        "tokens": training["tokens"],
        "parameters": training["parameters"],
        "seconds": round(sum(event["step_ms"] for event in logs) / 1e3 * training["updates"] / max(1, len(logs)), 1),
        "tok_s": round(sorted(event["tok_s"] for event in logs)[len(logs) // 2]) if logs else None,
        "tflops": round(sorted(event["tflops"] for event in logs)[len(logs) // 2], 3) if logs else None,
    }
    write_json(paths.metrics(stage), metrics)


def parent_of(stage: str) -> str | None:
    """The stage whose weights this one starts from."""
    index = TRAINING_STAGES.index(stage)
    return TRAINING_STAGES[index - 1] if index else None


def code_hash(stage: str, root: Path = Path()) -> str:
    """Hash of the code that dvc.yaml says the stage depends on."""
    pipeline = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))
    digest = hashlib.sha256()
    for entry in pipeline["stages"][stage]["deps"]:
        path = root / entry
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.suffix == ".py" else []
        for file in files:
            digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def announce(telemetry: Telemetry, facts: dict[str, Any], parts: Assembled, position: Position) -> None:
    """Say what is about to be trained, and how, before the first update."""
    matrices, total = facts["matmul_parameters"], facts["parameters"]
    telemetry.say(
        f"{facts['stage']}: {total:,} parameters ({matrices:,} in matrix products), {facts['updates']:,} updates of "
        f"{facts['tokens_per_update']:,} tokens on {facts['ranks']} × {facts['device']}"
    )
    telemetry.say(
        f"  precision {parts.recipe.name} ({parts.recipe.reason}); compiled: {'yes' if parts.compiled else 'no'}"
    )
    for shape_name, choice in parts.choices.items():
        times = ", ".join(f"{name} {choice[f'{name}_ms']} ms" for name in ("fp8", "bf16") if f"{name}_ms" in choice)
        way = choice["format"]
        if way == "bf16" and choice.get("parts", 1) > 1:
            way += f", weight's gradient in {choice['parts']} parts"
        telemetry.say(f"    products of {shape_name}: {way} ({times})")
    for remark in parts.remarks:
        telemetry.say(f"  {remark}")
    telemetry.say(f"  attention {parts.attention.name} ({parts.attention.reason})")
    for name, why in parts.attention.rejected:
        telemetry.say(f"    not {name}: {why}")
    if position.step:
        telemetry.say(f"  goes on from update {position.step:,}")


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "CPU"


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda or "none"}


def machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "disk_free_gb": round(shutil.disk_usage(".").free / 1e9),
    }
