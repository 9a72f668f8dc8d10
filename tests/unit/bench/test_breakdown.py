"""The breakdown of a step: kernels' classes by name, phases by launch, gaps, floors, and the files it writes."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench import breakdown
from bench import step as bench_step
from bench.breakdown import COLOURS, IDLE, OTHER, Kernel, busy_us, classify, kernels_of, milliseconds, top
from bench.floor import floor_parts
from bench.timing import ceilings
from config.errors import UserError

# Names as profilers print them, long ones cut off within their template arguments.
NAMES = {
    "matrix multiply": [
        "kernel_cutlass_kernel_quackepiloguefrontendGemmMod_dact_epi_ff0e5e31da019894__c_sm9_object_at__TiledMMA",
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNT",
        "nvjet_qqtst_112x128_128x7_2x1_v_bz_coopA_algo2_TNN",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
        "__5x_cublas",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false>",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false>",
        "triton_tem_fused_mm_12",
        "kernel_cutlass_kernel_quackgemm_sm90GemmSm90_object_at__TiledMMA_ThrLayoutVMNK11110000_0",
    ],
    "attention forward": [
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensor0000o11101213_0",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloa",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopF",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t",
        "triton_tem_fused_flex_attention_3",
    ],
    "attention backward": [
        "kernel_cutlass_kernel_flash_attncuteflash_bwd_sm90FlashAttentionBackwardSm90_object_at__tensor0000o11101213_0",
        "kernel_cutlass_kernel_flash_attncuteflash_bwd_preprocessFlashAttentionBackwardPreprocess_object_at__tensor_0",
        "kernel_cutlass_kernel_flash_attncuteflash_bwd_postprocessFlashAttentionBackwardPostprocess_object_at__tens_0",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8",
        "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false",
        "void pytorch_flash::flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, f",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<flash::CollectiveMainloopB",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1_cga1x1x1_kernel0_0",
        "fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::",
        "triton_tem_fused_flex_attention_backward_17",
    ],
    "quantise, transpose": [
        "_quantize",
        "_transpose",
        "void transformer_engine::detail::cast_transpose_general_kernel<8, 16, float, __nv_bfloat16, __nv_fp8_e4m3>",
        "void transformer_engine::(anonymous namespace)::amax_kernel<8, true, __nv_bfloat16>(__nv_bfloat16 const*",
        "cast_transpose_optimized_kernel",
        "transpose_optimized_kernel",
    ],
    "loss": [
        "_cross_entropy",
        "triton_red_fused__log_softmax__to_copy_prepare_softmax_online_2",
        "triton_red_fused__log_softmax_backward_data_add_nll_loss_backward_nll_loss_forward_2",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::(anonymous",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*",
    ],
    "embedding": [
        "void at::native::(anonymous namespace)::indexing_backward_kernel_stride_1<float>(long const*, long const*",
        "void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>",
        "triton_poi_fused__to_copy_embedding_dense_backward_19",
        "triton_poi_fused__to_copy_index_put_new_zeros_4",
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<long, long",
    ],
    "norm, pointwise": [
        "triton_poi_fused__to_copy_mul_relu_pow_7",
        "triton_red_fused__fused_rms_norm_add_mul_3",
        "triton_per_fused__fused_rms_norm_backward_add_mul_sum_11",
        "_forward",
        "_backward",
        "_relu2_backward",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3u",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::n",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::Tensor",
    ],
    OTHER: [
        "Memcpy DtoD (Device -> Device)",
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBa",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<4u>",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "kernel_of_which_nothing_is_known",
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_the_class_of_a_kernel(kind: str, name: str) -> None:
    assert classify(name) == kind


def test_every_class_has_names_and_a_colour() -> None:
    assert {kind for kind, _ in breakdown.CLASSES} == set(NAMES) <= set(COLOURS)


def trace() -> list[dict]:
    """Two phases; the GPU lags behind, so the first phase's last kernel starts when the second has begun."""

    def launch(ts: float, correlation: int, cat: str = "cuda_runtime") -> dict:
        return {"cat": cat, "name": "launch", "ts": ts, "dur": 1, "args": {"correlation": correlation}}

    def kernel(name: str, ts: float, duration: float, correlation: int, cat: str = "kernel") -> dict:
        return {"cat": cat, "name": name, "ts": ts, "dur": duration, "args": {"correlation": correlation, "stream": 7}}

    return [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"cat": "user_annotation", "name": "forward_backward", "ts": 0, "dur": 100},
        {"cat": "user_annotation", "name": "optimizer", "ts": 101, "dur": 50},
        {"cat": "gpu_user_annotation", "name": "optimizer", "ts": 110, "dur": 1000},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 5, "dur": 20, "args": {}},
        launch(10, 1),
        launch(90, 2, "cuda_driver"),
        launch(120, 3),
        launch(130, 4),
        kernel("nvjet_tst_128x256", 1000, 3000, 1),
        kernel("_cross_entropy", 4500, 500, 2),
        kernel("nvjet_tst_64x64", 5000, 2000, 3),
        kernel("Memcpy DtoD (Device -> Device)", 6500, 1500, 4, "gpu_memcpy"),
    ]


def test_a_kernel_belongs_to_the_phase_that_launched_it() -> None:
    kernels = kernels_of(trace())
    assert [kernel.phase for kernel in kernels] == ["forward_backward"] * 2 + ["optimizer"] * 2
    assert [kernel.kind for kernel in kernels] == ["matrix multiply", "loss", "optimizer", "optimizer"]


def test_milliseconds_by_class_and_the_gaps_between() -> None:
    kernels = kernels_of(trace())
    spent = milliseconds(kernels)
    assert {kind: value for kind, value in spent.items() if value} == {
        "matrix multiply": 3.0,
        "loss": 0.5,
        "optimizer": 3.5,
        IDLE: 0.5,
    }
    assert breakdown.optimizer_milliseconds(kernels) == {"matrix multiply": 2.0, OTHER: 1.5}


def test_a_trace_without_kernels_is_an_error() -> None:
    with pytest.raises(UserError, match="no GPU kernel"):
        milliseconds([])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12))
def test_busy_time_counts_each_moment_once(times: list[tuple[int, int]]) -> None:
    kernels = [Kernel("k", start, duration, "") for start, duration in sorted(times)]
    moments = {at for start, duration in times for at in range(start, start + duration)}
    assert busy_us(kernels) == len(moments)


def test_the_longest_kernels_come_first_and_runs_are_summed() -> None:
    kernels = [Kernel("a", 0, 1000, ""), Kernel("b", 0, 1500, ""), Kernel("a", 0, 1000, ""), Kernel("c", 0, 1, "")]
    lines = top(kernels, 2).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["a", "b"]
    assert lines[1].split()[:3] == ["2.000", "57.1%", "2"]


def tiny_step() -> bench_step.Step:
    options = "--depth 1 --vocab 64 --seq 32 --micro-batch 2 --accum 2 --precision bf16 --compile off"
    return bench_step.build(bench_step.arguments(options.split()))


def test_the_profiler_sees_both_phases_of_one_update() -> None:
    events = breakdown.record(tiny_step())
    assert [event["name"] for event in events if breakdown.is_phase(event)] == list(breakdown.PHASES)
    if not torch.cuda.is_available():
        assert kernels_of(events) == []


def test_the_floor_of_a_step() -> None:
    step = tiny_step()
    found = floor_parts(step, ceilings(torch.device("cpu")))
    assert set(found) <= set(COLOURS) and min(found.values()) > 0
    tokens, matrices = 2 * 2 * 32, 12 * 128 * 128 + 64 * 128
    assert found["matrix multiply"] == pytest.approx(6 * tokens * matrices / 0.5 / 1e9)


def test_a_machine_without_a_gpu_is_told(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="found no GPU"):
        breakdown.main(["--depth", "1"])


def test_draws_from_what_was_written(tmp_path: Path) -> None:
    result = {
        "device": "GPU",
        "date": "2026-12-01T00:00:00+00:00",
        "precision": "bf16",
        "attention": "fa4",
        "depth": 20,
        "window": "SSSL",
        "micro_batch": 32,
        "accum": 1,
        "seq": 2048,
        "ms_by_class": milliseconds(kernels_of(trace())),
        "floor_ms": {"matrix multiply": 2.0, "optimizer": 1.0},
    }
    (tmp_path / "breakdown.json").write_text(json.dumps(result))
    breakdown.main(["--draw", str(tmp_path)])
    assert (tmp_path / "breakdown.png").read_bytes().startswith(b"\x89PNG")
