"""The report of a run: complete where the folder is, honest where it is not, and safe with whatever a model says."""

import json
import math
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.markup import esc, message, parts_of
from app.report import write
from app.report_results import judged_tasks
from app.run_record import read_run, read_stage
from config.errors import UserError

SECTIONS = ["loss", "speed", "learning", "tasks", "chats", "data", "peek", "profile", "machine", "notes"]
VOID = {"meta", "link", "br", "hr", "img", "input"}
LADDER = ["the the of a", "5x is the number 3", "5x = 10, so x = 10", "5x = 10, so x = 2"]
CALL = "<|calculator_start|>4182*37<|calculator_end|><|output_start|>154734<|output_end|>"
LONG = ["4 4 4", "4182 * 37 = 12", "4182 * 37 = 15014", CALL + "154734"]


def fake_run(root: Path) -> Path:
    """A run folder as `tiny` leaves it, with figures made up to look like a real run's."""
    run, rng = root / "runs" / "tiny", random.Random(0)
    for folder in ("events", "metrics", "shards"):
        (run / folder).mkdir(parents=True)
    clock = 1_796_000_000.0
    plan = (("pretrain", 1500, 6.6, 0.95), ("midtrain", 620, 1.4, 0.42), ("sft", 210, 0.6, 0.21))
    for number, (stage, updates, first, last) in enumerate(plan):
        lines = [_start(stage, updates, clock)]
        for step in range(10, updates + 1, 10):
            clock += 10 * 0.105
            share = step / updates
            loss = last + (first - last) * math.exp(-7 * share) + (0.1 - 0.05 * share) * last * rng.gauss(0, 1)
            speed = 39_000 * (0.4 if step == 10 else 1) * rng.gauss(1, 0.02)
            lines.append(
                {"event": "log", "time": clock, "step": step, "loss": loss, "lr": 0.02, "grad_norm": 0.4}
                | {"tok_s": speed, "tflops": speed * 5.8e-6, "mfu": None, "data_ms": 1.1, "step_ms": 105.0}
                | {"tokens": step * 4096, "eta_s": (updates - step) * 0.105}
            )
            if step % (updates // 40 * 10) == 0 or step == updates:
                lines.append(
                    {
                        "event": "validation",
                        "step": step,
                        "loss": loss * 1.03,
                        "bits_per_byte": loss * 0.51,
                        "time": clock,
                    }
                )
            if step % (updates // 50 * 10) == 0:
                known = min(3, int(4 * share) if number == 0 else 3)
                lines.append(_sample(step, "If 5x + 3 = 13, then x is", LADDER[known]))
                lines.append(
                    _sample(step, "The capital of France is", ["and and", "London.", "Paris.", "Paris."][known])
                )
                lines.append(_sample(step, "4182 * 37 =", LONG[known]))
        lines.append({"event": "checkpoint", "step": updates, "seconds": 0.2})
        lines.append({"event": "end", "step": updates, "loss": last, "time": clock})
        (run / "events" / f"{stage}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "metrics" / f"{stage}.json").write_text(json.dumps({"loss": last, "seconds": updates * 0.105}))
        (run / "shards" / f"{stage}.json").write_text(json.dumps(_manifest(stage)))
    (run / "metrics" / "evaluate.json").write_text(json.dumps(_evaluate(rng)))
    (run / "profile.yaml").write_text(
        "profile: tiny\nmodel:\n  width: 128\n  layers: 4\n  heads: 2\n  context: 256\n"
        "tokenizer:\n  vocab_size: 768\nsft:\n  learning_rate: 0.01\n"
    )
    return run


def _start(stage: str, updates: int, clock: float) -> dict:
    return {
        "event": "start", "time": clock, "stage": stage, "parameters": 1_016_832, "matmul_parameters": 884_736,
        "updates": updates, "tokens_per_update": 4096, "ranks": 1, "compiled": True, "precision": "bf16",
        "attention": "sdpa", "device": "AMD EPYC 9R14",
        "versions": {"python": "3.11.7", "torch": "2.13.0+cpu", "cuda": "none"},
        "machine": {"system": "Linux x86_64", "cores": 2, "memory_gib": 15.6, "disk_free_gb": 41},
    }  # fmt: skip


def _sample(step: int, prompt: str, reply: str) -> dict:
    return {"event": "sample", "step": step, "prompt": prompt, "reply": reply}


def _manifest(stage: str) -> dict:
    names = {"pretrain": ("documents", "stories", "haiku"), "midtrain": ("mixed", "haiku"), "sft": ("chats",)}[stage]
    sources = [
        {"source": n, "weight": 1.0, "documents": 41_000 // (i + 1), "tokens": 3_100_000 // (i + 1)}
        | {"validation_documents": 410 // (i + 1), "skipped": {"empty": 3} if i else {}}
        for i, n in enumerate(names)
    ]
    splits = {
        "train": {"rows": 12_000, "tokens": 3_072_000, "padding": 0, "files": [{"name": "ab.bin", "rows": 12_000}]},
        "validation": {"rows": 130, "tokens": 33_280, "files": []},
    }
    return {"format": 1, "context": 256, "seed": 0, "validation": "held out", "splits": splits, "sources": sources}


def _evaluate(rng: random.Random) -> dict:
    floors = {
        "add_2digit": (0.97, 0.988), "sub_2digit": (0.97, 0.992), "equation": (0.96, 0.974),
        "word_problem": (0.93, 0.952), "division": (0.88, 0.864), "times_table": (0.98, 1.0),
        "calculator": (0.98, 0.996), "questions": (0.96, 0.982), "greetings": (1.0, 1.0), "names": (0.85, 0.9),
        "unknown": (0.9, 0.93), "haiku_575": (0.87, 0.884), "haiku_topic": (0.95, 0.971), "free": (None, 0.5),
    }  # fmt: skip
    tasks = {
        name: {"share": share, "n": 500, "floor": floor, "temperature": 0.5 if "haiku" in name else 0.0}
        | {"samples": _task_samples(name, rng)}
        for name, (floor, share) in floors.items()
    }
    return {"tasks": tasks, "bits_per_byte": {"bits_per_byte": 0.7234, "loss": 1.391, "bytes": 512_345}}


def _task_samples(name: str, rng: random.Random) -> list[dict]:
    if "haiku" in name:
        poem = "an old silent pond\na frog jumps into the pond\nsplash! silence again"
        return [{"prompt": "Write a haiku about a pond.", "reply": poem, "answer": "", "correct": True}]
    made = []
    for i in range(6):
        a, b = rng.randint(1000, 9999), rng.randint(11, 99)
        if name == "calculator":
            reply = f"[{a} * {b} = {a * b}] {a} times {b} is {a * b}."
            made.append({"prompt": f"What is {a} times {b}?", "reply": reply, "answer": str(a * b), "correct": True})
        else:
            a, b = a % 90, b % 90
            wrong = i == 4
            reply = f"{a // 10 * 10} + {b // 10 * 10} = {a // 10 * 10 + b // 10 * 10}, so {a} + {b} = {a + b + wrong}."
            made.append({"prompt": f"what is {a} + {b}", "reply": reply, "answer": str(a + b), "correct": not wrong})
    return made


def page(run: Path) -> str:
    """Write the report, check what holds for every report, and return it."""
    out = run / "report.html"
    write(run, out)
    text = out.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert checker.tags.isdisjoint({"script", "iframe", "object", "form", "base"})
    assert checker.sections == SECTIONS
    assert checker.outside == []
    assert not re.search(r"url\(|@import", text.split("</style>")[0])
    assert "NaN" not in text.split("</style>")[1].replace("NaN loss", "")
    return text


class Checker(HTMLParser):
    """Collects tags, sections and links; fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.sections: list[str] = []
        self.outside: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.add(tag)
        assert not any(name.startswith("on") for name in attributes), attributes
        self.outside += [
            v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith(("#", "data:,"))
        ]
        if tag == "section":
            self.sections.append(attributes["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def section(text: str, name: str) -> str:
    return text.split(f'<section id="{name}">')[1].split("</section>")[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fake_run(tmp_path)


def test_a_whole_run(run):
    text = page(run)
    head = text.split('<section id="loss">')[0]
    for figure in ("1.02\u202fM", "9.54\u202fM", "4\xa0min 5\xa0s", "0.723", "12 of 13", "AMD EPYC 9R14 · 2 cores"):
        assert figure in head, figure
    assert text.count("<svg") == 6
    assert "✗ short by 1.6 points" in section(text, "tasks")
    assert section(text, "tasks").count("✓ pass") == 12
    assert "no floor" in section(text, "tasks")
    chats = section(text, "chats")
    assert '<span class="calc-name">calculator</span>' in chats
    assert "✓ right" in chats and "✗ wrong" in chats and "expected:" in chats
    assert section(text, "learning").index("the the of a") < section(text, "learning").index("so x = 2")
    for told in ("stories", "54.5\xa0%", "left out: 3 empty", "train: 12\u202fk rows, 3.07\u202fM tokens"):
        assert told in section(text, "data"), told
    assert "learning_rate: 0.01" in section(text, "profile")
    assert "2.13.0+cpu" in section(text, "machine")
    assert "in one go" in section(text, "notes")
    assert len(text) < 1_000_000


def test_same_folder_same_bytes_wherever_it_lies(run, tmp_path):
    first = page(run)
    (run / "report.html").unlink()
    moved = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(run, moved)
    assert page(moved) == first


def test_an_empty_folder_says_what_is_missing(tmp_path):
    (tmp_path / "empty").mkdir()
    text = page(tmp_path / "empty")
    assert text.count('class="missing"') == 9
    assert "n/a" in text
    with pytest.raises(UserError, match="not a folder"):
        write(tmp_path / "nowhere", tmp_path / "report.html")


@pytest.mark.parametrize("name", ["events/pretrain.jsonl", "events/sft.jsonl", "metrics/evaluate.json", "profile.yaml"])
@pytest.mark.parametrize("content", [None, "", "\x00\xff", "[]", '{"event": "log"', "{" * 5000])
def test_a_missing_or_broken_file_costs_its_own_section_only(run, name, content):
    whole = page(run)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content.encode("latin-1"))
    text = page(run)
    assert text != whole
    assert section(text, "data") == section(whole, "data")


def test_a_line_cut_short_and_an_old_file_without_keys(run):
    path = run / "events" / "sft.jsonl"
    lines = path.read_text().splitlines()
    path.write_text('{"event": "start"}\n' + "\n".join(lines[1:-1]) + "\n" + lines[-1][:20])
    text = page(run)
    assert "1 unreadable line " in section(text, "notes")
    assert "sft has no end event: it was cut off after update 210" in section(text, "notes")
    assert "updates in each stage" in section(text, "loss")  # no tokens without tokens_per_update


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "null", "1e999", '"oops"', "true"])
def test_a_loss_that_is_no_number_is_marked_and_told(run, bad):
    path = run / "events" / "midtrain.jsonl"
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"step": 300, "loss"' in line)
    lines[at] = re.sub(r'"loss": [^,]+', f'"loss": {bad}', lines[at])
    path.write_text("\n".join(lines))
    text = page(run)
    assert "The loss of midtrain was not a number at update 300 (1 log line)" in section(text, "notes")
    assert 'class="bad"' in section(text, "loss")


def test_a_resumed_run_counts_each_step_once_and_says_so(run):
    path = run / "events" / "pretrain.jsonl"
    lines = path.read_text().splitlines()
    cut = next(i for i, line in enumerate(lines) if '"step": 700, "loss"' in line)
    redo = next(i for i, line in enumerate(lines) if '"step": 610, "loss"' in line)
    resume = json.dumps({"event": "resume", "step": 600, "code_changed": True})
    whole = read_run(run).stages[0]
    path.write_text("\n".join([*lines[:cut], lines[0], resume, *lines[redo:]]))
    again = read_run(run).stages[0]
    assert again.log == whole.log and again.samples == whole.samples and again.validation == whole.validation
    text = page(run)
    assert "resumed once, at update 600" in section(text, "notes")
    assert "went on under changed code" in section(text, "notes")
    assert 'class="mark"' in section(text, "loss")
    assert "changed code" in text.split('<section id="loss">')[0]


def test_evaluate_skipped(run):
    (run / "metrics" / "evaluate.json").write_text('{"skipped": "no <time>"}')
    assert "skipped: no &lt;time&gt;" in section(page(run), "tasks")


def test_a_share_just_under_its_floor_is_short(run):
    tasks = {"a": {"share": 0.9699, "floor": 0.97, "n": 10_000}, "b": {"share": 0.97, "floor": 0.97}}
    tasks |= {"c": {"share": None, "floor": 0.97}, "d": 0.4, "e": {}, "f": {"share": float("nan"), "floor": 0.1}}
    (run / "metrics" / "evaluate.json").write_text(json.dumps({"tasks": tasks}))
    verdicts = [verdict for _, _, verdict in judged_tasks(read_run(run))]
    assert verdicts == ["short", "pass", "not measured", "no floor", "not measured", "not measured"]
    assert "short by 0.01 points" in page(run)


NASTY = "</pre><script>alert(1)</script>\" onload='x' & \x00\x1b[31m \u202eabc \ud83d 🦊 \x85"


def test_secrets_of_urls_are_not_shown(run):
    lines = ["url: https://me:word@host/a.txt?key=abc", "url: 'http://host/b.txt?sig=abc'", "url: http://host/c.txt"]
    (run / "profile.yaml").write_text("\n".join(lines))
    text = section(page(run), "profile")
    assert "https://host/a.txt?…\n" in text and "http://host/b.txt?…" in text and "http://host/c.txt<" in text
    assert "word" not in text and "abc" not in text


def test_text_of_the_model_is_shown_and_does_nothing(run):
    path = run / "events" / "pretrain.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(_sample(2000, NASTY, NASTY)) + "\n")
    tasks = {NASTY: {"share": 0.5, "floor": 0.4, "samples": [{"prompt": NASTY, "reply": NASTY, "answer": NASTY}]}}
    (run / "metrics" / "evaluate.json").write_text(json.dumps({"tasks": tasks}))
    (run / "profile.yaml").write_text("name: </pre><script>alert(2)</script>\n")
    manifest = {"sources": [{"source": NASTY, NASTY: 4, "skipped": {NASTY: NASTY}}], "splits": {NASTY: {NASTY: 5}}}
    (run / "shards" / "sft.json").write_text(json.dumps(manifest))
    text = page(run)
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "🦊" in text and "␀␛[31m" in text and "[U+202E]abc" in text and "[U+D83D]" in text
    assert not set(text) & set("\x00\x1b\u202e\x85")


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=())))
def test_escaped_text_is_always_writable_and_inert(text):
    safe = esc(text)
    safe.encode("utf-8")
    assert not set(safe) & set("<>\"'") and all(c in "\n\t" or c >= " " for c in safe)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIGURES = ["step", "loss", "tok_s", "tflops", "mfu", "tokens", "time", "bits_per_byte", "seconds", "data_ms", "step_ms"]
FACTS = ["parameters", "updates", "machine", "versions", "device", "tokens_per_update", "ranks", "code_changed"]
KEYS = ["event", "prompt", "reply", *FIGURES, *FACTS]
kinds = st.sampled_from(["start", "log", "validation", "sample", "resume", "end", "odd"])
events = st.dictionaries(st.sampled_from(KEYS), values).map(lambda e: e) | st.builds(
    lambda kind, rest: rest | {"event": kind}, kinds, st.dictionaries(st.sampled_from(KEYS), values)
)
task_values = st.dictionaries(st.sampled_from(["share", "n", "floor", "temperature", "samples"]), values)
sample_values = st.dictionaries(st.sampled_from(["prompt", "reply", "answer", "correct"]), values)


@settings(max_examples=60, deadline=None)
@given(
    logs=st.lists(events, max_size=12),
    tasks=st.dictionaries(st.text(max_size=5), task_values | values, max_size=3) | values,
    samples=st.lists(sample_values | values, max_size=3),
    bits=values,
    manifest=st.dictionaries(st.sampled_from(["sources", "rows", "tokens", "by_source"]), values),
    peek=values
    | st.dictionaries(st.sampled_from(["sources", "lengths", "rows"]), st.lists(values, max_size=3) | values),
)
def test_no_content_of_any_shape_crashes_it(tmp_path_factory, logs, tasks, samples, bits, manifest, peek):
    run = tmp_path_factory.mktemp("any")
    for folder in ("events", "metrics", "shards"):
        (run / folder).mkdir()
    for stage in ("pretrain", "sft"):
        (run / "events" / f"{stage}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in logs))
        (run / "shards" / f"{stage}.json").write_text(json.dumps(manifest))
    if isinstance(tasks, dict):
        tasks = tasks | {"sampled": {"share": 0.5, "samples": samples}}
    (run / "metrics" / "evaluate.json").write_text(json.dumps({"tasks": tasks, "bits_per_byte": bits}))
    (run / "peek.json").write_text(json.dumps({"mixtures": {"sft": peek, "x": {"rows": [peek]}}, "gpt2": bits}))
    page(run)


def test_messages_in_every_shape():
    call = [("calculator", "6*7"), ("output", "42"), ("text", "It is 42.")]
    dicts = [{"type": kind, "text": text} for kind, text in call]
    spelled = "<|calculator_start|>6*7<|calculator_end|><|output_start|>42<|output_end|>It is 42."
    for shape in (dicts, {"role": "assistant", "content": dicts}, spelled):
        assert parts_of(shape) == call
    assert parts_of("[6*7 = 42] It is 42.") == call
    assert parts_of("[so x = 2]") == [("text", "[so x = 2]")]
    assert parts_of("6 < 7") == [("text", "6 < 7")]
    assert "= 42</span> It is 42." in message(dicts)
    assert "(nothing)" in message(None)


def test_a_stage_still_running_reads_the_same_way(run, tmp_path):
    stage = read_stage("sft", run / "events" / "sft.jsonl")
    assert stage.seconds == pytest.approx(210 * 0.105)
    assert stage.last_step == 210 and stage.tokens == 210 * 4096
    assert not read_stage("sft", tmp_path / "none.jsonl").found
