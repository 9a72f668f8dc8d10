"""Each benchmark runs on a CPU in tiny shapes and prints one JSON line with its limits."""

import gc
import json
import math

import pytest
import torch

from bench import linear, loss, optimizer, timing
from bench.floor import attended_pairs, attention_flops, matmul_flops
from config.errors import UserError
from model.config import flops_per_token
from model.precision.recipes import resolve
from tests.small_gpt import small_config, small_gpt
from training.config import TrainConfig
from training.distributed import Ranks
from training.optim.optimizer import Optimizer, groups_of

CPU = torch.device("cpu")


def printed(main, capsys, *options: str) -> dict:
    """What a command prints with --json: one line, strict JSON."""
    main([*options, "--json"])
    (line,) = capsys.readouterr().out.splitlines()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_linear(capsys) -> None:
    options = ("--rows", "64", "--shapes", "128x256,48x32", "--recipes", "bf16,fp32,fp8", "--repeats", "2")
    found = printed(linear.main, capsys, *options)
    assert found["bench"] == "linear" and found["copy_gbps"] == 10.0
    assert list(found["refused"]) == ["fp8"] and "needs a GPU" in found["refused"]["fp8"]
    assert [(row["inputs"], row["outputs"], row["recipe"]) for row in found["layers"]] == [
        (128, 256, "bf16"),
        (128, 256, "fp32"),
        (48, 32, "bf16"),
        (48, 32, "fp32"),
    ]
    for row in found["layers"]:
        work = 6 * 64 * row["inputs"] * row["outputs"]
        assert row["tflops"] == pytest.approx(work / row["ms"] / 1e9, rel=2e-3)
        ceiling = 0.5 if row["recipe"] == "bf16" else 0.25
        assert row["share_of_ceiling"] == pytest.approx(row["tflops"] / ceiling, rel=2e-3)
    for row in found["products"]:
        parts = sum(row[name] for name in linear.PRODUCTS)
        assert row["ms"] == pytest.approx(parts, rel=2e-3) and row["ms"] > 0


def test_a_layer_gets_both_gradients() -> None:
    layer = linear.layer(16, 8, resolve("bf16", CPU), CPU)
    assert linear.layer_ms(layer, 4, resolve("bf16", CPU), False, CPU, 1) > 0
    assert layer.weight.grad.shape == (8, 16) and layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("text", ["", "12", "12x", "0x8", "axb", "1x2x3"])
def test_a_wrong_shape_says_what_was_expected(text: str) -> None:
    with pytest.raises(UserError, match="expected inputs x outputs"):
        linear.parse_shapes(text)


def test_the_floor_of_a_layer_is_its_products_or_its_bytes() -> None:
    assert linear.floor_ms((10, 20, 30), 1.0, 1e9) == pytest.approx(6 * 6000 / 1e9)
    assert linear.floor_ms((10, 20, 30), 1e9, 1.0) == pytest.approx(2 * 10 * (60 + 60) / 1e6)
    assert linear.floor_ms((10, 20, 30), None, 1.0) is None


def test_loss(capsys) -> None:
    options = ("--rows", "64", "--width", "32", "--vocab", "96", "--recipes", "bf16,fp32,fp8", "--repeats", "2")
    found = printed(loss.main, capsys, *options)
    assert list(found["refused"]) == ["fp8"]
    assert [(row["recipe"], row["loss_of"]) for row in found["results"]] == [
        ("bf16", "model"),
        ("bf16", "float32 logits"),
        ("fp32", "model"),
        ("fp32", "float32 logits"),
    ]
    for row in found["results"]:
        assert row["ms"] > 0 and row["floor_share"] == pytest.approx(row["floor_ms"] / row["ms"], rel=2e-3)
        assert row["loss"] == pytest.approx(math.log(96) + 0.5, abs=0.4)  # logits of deviation 1, targets at random
    ours, naive = (row["loss"] for row in found["results"][:2])
    assert ours == pytest.approx(naive, rel=1e-3)


def test_the_floor_of_the_loss() -> None:
    products = 6 * 8 * 16 * 32 / 2.0 / 1e9
    assert loss.floor_ms(8, 16, 32, 2.0, 1.0) == pytest.approx(products + 8 * 32 * 4 / 1e6)
    assert loss.floor_ms(8, 16, 32, 2.0, 1.0, gradient_bytes=1) == pytest.approx(products + 8 * 32 * 3 / 1e6)


def test_optimizer(capsys) -> None:
    options = ("--depth", "1", "--vocab", "64", "--precision", "bf16", "--repeats", "1", "--compile", "off")
    found = printed(optimizer.main, capsys, *options)
    assert found["parameters"] == sum(part["parameters"] for part in found["parts"])
    assert {part["kind"] for part in found["parts"]} == {"muon", "adamw"}
    assert min(part["ms"] for part in found["parts"]) > 0 and found["casts_ms"] > 0
    assert found["muon_ms"] == pytest.approx(sum(p["ms"] for p in found["parts"] if p["kind"] == "muon"), rel=2e-3)


def test_the_work_of_an_optimizer_step_is_counted() -> None:
    model = small_gpt()
    config = TrainConfig(tokens=64, batch_tokens=64, micro_batch=1)
    groups = Optimizer(model, config, Ranks(0, 1, CPU), torch.float32).groups
    by_name = {group.name: group for group in groups}
    up = by_name["matrices_64x32"]  # of both layers
    assert optimizer.flops(up) == 2 * 5 * (4 * 32 * 32 * 64 + 2 * 32**3)
    # Weights and velocity in and out, gradients in, the variance along the longer side in and out.
    assert optimizer.traffic(up) == 2 * (64 * 32 * 4 * 5 + 64 * 4 * 2)
    head = by_name["head.weight"]
    assert optimizer.flops(head) == 0 and optimizer.traffic(head) == 64 * 32 * 4 * 7
    assert sum(map(optimizer.parameters, groups_of(model, config))) == sum(p.numel() for p in model.parameters())
    assert optimizer.floor_ms([up, head], 1.0, 1.0) > optimizer.floor_ms([head], None, 1.0) > 0


def test_attention_counts_only_what_is_attended() -> None:
    assert attended_pairs(4, 4) == 1 + 2 + 3 + 4
    assert attended_pairs(5, 2) == 1 + 2 + 2 + 2 + 2
    config = small_config(windows=(32, 32))
    forward, backward = attention_flops(config, 32)
    assert backward == 2.5 * forward
    # Published counts leave in the half that is masked, and take the backward pass as twice the forward one.
    published = flops_per_token(config) - matmul_flops(config)
    assert forward * 32 == pytest.approx(published / 3 * 33 / 2)


def test_ceilings_are_those_of_the_number_format() -> None:
    found = timing.ceilings(CPU)
    assert timing.ceiling_of("te-fp8-delayed", found) == timing.ceiling_of("fp8", found) == 1.0
    assert timing.ceiling_of("bf16", found) == timing.ceiling_of("nvfp4-emulated", found) == 0.5
    assert timing.ceiling_of("te-nvfp4", found) is None


def test_a_header_says_what_was_used() -> None:
    found = timing.header("step", CPU)
    assert found["torch"] == torch.__version__ and found["device"] == "cpu" and found["driver"] is None
    assert json.loads(json.dumps(found)) == found


def test_a_table_to_read_is_aligned_and_marks_what_is_missing(capsys) -> None:
    timing.report({"ms": 1.23456, "none": None, "rows": [{"a": 1.0}, {"a": None, "long name": 2}]}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ms", "1.235"] and lines[1].split() == ["none", "–"]
    assert lines[-1].split() == ["–", "2"] and len(set(map(len, lines[-3:]))) == 1


def test_the_collector_is_off_while_a_call_is_timed_and_on_again_after() -> None:
    seen = []
    assert timing.median_ms(lambda: seen.append(gc.isenabled()), CPU, warmup=1, repeats=2) >= 0
    assert timing.wall_ms(lambda: seen.append(gc.isenabled()), CPU, warmup=1, repeats=2) >= 0
    assert seen == [False] * 6 and gc.isenabled()
