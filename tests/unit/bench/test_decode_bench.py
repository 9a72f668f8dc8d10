"""bench.decode on a CPU: one line a batch, whose figures agree with one another, and the bytes counted by hand."""

import json

import pytest

from bench import decode
from bench.decode import Run, bytes_read
from config.errors import UserError
from tests.small_gpt import small_config

SMALL = [
    "--width",
    "32",
    "--layers",
    "2",
    "--heads",
    "2",
    "--vocab",
    "64",
    "--context",
    "64",
    "--repeats",
    "1",
    "--json",
]


@pytest.fixture(autouse=True)
def fixed_limits(monkeypatch) -> None:
    monkeypatch.setattr(decode, "read_gbps", lambda _device: 12.0)
    monkeypatch.setattr(decode, "copy_gbps", lambda _device: 10.0)


def test_a_line_a_batch(capsys) -> None:
    decode.main([*SMALL, "--batch", "1", "--batch", "3", "--tokens", "40"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["batch"] for line in lines] == [1, 3]
    for line in lines:
        assert line["precision"] == "fp32" and line["prompt"] == 16 and line["tokens"] == 40
        assert line["tok_s"] == pytest.approx(1e3 * line["batch"] / line["ms_token"], rel=2e-3)
        assert line["gb_s"] == pytest.approx(line["bytes_token"] / line["ms_token"] / 1e6, rel=2e-3)
        assert line["share"] == pytest.approx(line["gb_s"] / 12, rel=2e-3)
    assert lines[1]["bytes_token"] > lines[0]["bytes_token"]


def test_a_profiles_model(capsys) -> None:
    decode.main(["--profile", "tiny", "--repeats", "1", "--tokens", "5", "--prompt", "3", "--json"])
    line = json.loads(capsys.readouterr().out)
    assert (line["width"], line["layers"], line["context"]) == (128, 4, 256)


def test_bytes_by_hand() -> None:
    config = small_config(kv_heads=1)  # width 32, 2 heads of 16, MLP 64, vocabulary 64, windows 8 and 32
    layer = 32 * (2 + 2) * 16 + 32 * 32 + 2 * 32 * 64  # QKV, output, MLP
    matrices = 2 * layer + 64 * 32
    rows = 32 + 16  # an embedding row, and one of the single value embedding
    # Fed at 6, 7 and 8: the window of 8 shows 6, 7 and 7 older keys, the other one 6, 7 and 8.
    older = (6 + 7 + 7 + 6 + 7 + 8) / 3
    run = Run(batch=5, prompt=6, tokens=4, temperature=0.0)
    assert bytes_read(config, run, 2, 1) == matrices + 5 * (rows + older * 2 * 16) * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "60"], "found a prompt of 16 and 60 new tokens"),
        (["--prompt", "0"], "found a prompt of 0"),
        (["--tokens", "1"], "expected at least 1 and 2"),
        (["--precision", "fp8", "--batch", "2"], "serve a single row"),
        (["--precision", "fp8"], "need a CUDA GPU"),
        (["--heads", "3"], "must be an even head size"),
    ],
)
def test_what_can_not_be_measured_is_one_line(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        decode.main([*SMALL, *options])
