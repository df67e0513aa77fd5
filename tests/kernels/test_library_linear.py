"""The products by PyTorch's own: what the fused kernels' plain twins make."""

import pytest
import torch
from triton_marks import KERNEL_DEVICE, devices, dtypes, needs_triton

from labkit.kernels import (
    fold_layer_norm,
    fold_rms_norm,
    library_linear,
    linear_residual_plain,
    norm_linear_plain,
)
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.library_linear import (
    OUTPUTS_PER_PROGRAM,
    linear_into_residual,
    linear_residual_library,
    norm_linear_library,
    silu_gate_plain,
    silu_gate_triton,
)

M, N, K = 5, 12, 16
WEIGHT, BIAS, NORM, NORM_BIAS = torch.randn(N, K), torch.randn(N), torch.rand(K) + 0.5, torch.randn(K)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_behind_a_layer_norm(gelu, bias):
    x, layer = torch.randn(M, K) * 3 + 1, fold_layer_norm(NORM, NORM_BIAS, 1e-5, WEIGHT, bias)
    expected = norm_linear_plain(x, row_statistics(x, 7), layer, gelu)
    torch.testing.assert_close(norm_linear_library(x, None, layer, gelu), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_behind_an_rms_norm(is_gated, bias):
    x, layer = torch.randn(M, K) * 3 + 1, fold_rms_norm(NORM, 1e-5, WEIGHT, bias, is_gated)
    expected = norm_linear_plain(x, row_statistics(x, 7), layer)
    assert expected.shape == (M, N // 2 if is_gated else N)
    torch.testing.assert_close(norm_linear_library(x, None, layer), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [None, BIAS])
def test_before_a_residual_which_stays_as_it_is(bias):
    x, residual = torch.randn(M, K), torch.randn(M, N)
    kept = residual.clone()
    out, statistics = linear_residual_library(x, WEIGHT, bias, residual)
    assert statistics is None and torch.equal(residual, kept)
    torch.testing.assert_close(out, linear_residual_plain(x, WEIGHT, bias, residual)[0])


@pytest.mark.parametrize("bias", [None, BIAS])
def test_into_a_residual_which_goes_without_the_biases(bias):
    x, residual = torch.randn(M, K), torch.randn(M, N)
    behind = fold_layer_norm(torch.ones(N), torch.zeros(N), 1e-5, torch.randn(K, N), None)
    expected, _ = linear_residual_plain(x, WEIGHT, bias, residual)
    out, statistics = linear_into_residual(x, WEIGHT, bias, residual, behind=behind)
    assert out is residual
    torch.testing.assert_close(out if bias is None else out + bias, expected)
    made = norm_linear_library(out, statistics, behind)
    torch.testing.assert_close(made, norm_linear_library(expected, None, behind), rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("fold", [fold_layer_norm, fold_rms_norm])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_on_a_gpu_the_norm_behind_a_residual_is_made_with_it(fold, bias):
    norm = (torch.ones(N), torch.zeros(N)) if fold is fold_layer_norm else (torch.ones(N),)
    behind = fold(*norm, 1e-5, torch.randn(K, N), None)
    x, residual = torch.randn(M, K), torch.randn(M, N)
    on_gpu = [None if each is None else each.cuda() for each in (x, WEIGHT, bias, residual)]
    layer = behind._replace(weight=behind.weight.cuda())
    if layer.bias is not None:
        layer = layer._replace(bias=layer.bias.cuda())
    out, statistics = linear_residual_library(*on_gpu, behind=layer)
    expected = linear_residual_plain(x, WEIGHT, bias, residual)[0]
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-4)
    made = norm_linear_library(out, statistics, layer).cpu()
    torch.testing.assert_close(made, norm_linear_library(expected, None, behind), rtol=1e-4, atol=1e-4)
    assert statistics.normed is not None


@pytest.mark.parametrize("gate", [silu_gate_plain, silu_gate_triton])
@pytest.mark.parametrize("x", [torch.zeros(3, 5), torch.zeros(3, 8)[:, :4], torch.zeros(6)])
def test_a_gate_refuses_what_it_would_read_wrongly(gate, x):
    with pytest.raises(ValueError, match="x"):
        gate(x)


@needs_triton
@devices
@dtypes
@pytest.mark.parametrize("rows", [1, 300])
def test_the_gates_kernel_makes_what_its_plain_twin_does(rows, dtype, device):
    x = torch.randn(rows, OUTPUTS_PER_PROGRAM + 20, device=device, dtype=dtype)
    torch.testing.assert_close(silu_gate_triton(x), silu_gate_plain(x))


@needs_triton
def test_the_gates_kernel_reads_what_is_there_however_much_follows():
    x = torch.randn(1, 2 * OUTPUTS_PER_PROGRAM, device=KERNEL_DEVICE)
    out = torch.empty(OUTPUTS_PER_PROGRAM, device=KERNEL_DEVICE)
    library_linear._silu_gate_kernel[(1,)](x, out, 2**30, BLOCK=OUTPUTS_PER_PROGRAM)
    torch.testing.assert_close(out, silu_gate_plain(x)[0])


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu_gelu_is_a_part_of_the_product(dtype):
    x, norm, norm_bias = torch.randn(300, 64), torch.rand(64) + 0.5, torch.randn(64)
    layer = fold_layer_norm(norm, norm_bias, 1e-5, torch.randn(96, 64), torch.randn(96))
    expected = norm_linear_plain(x, row_statistics(x, 64), layer, gelu=True)
    on_gpu = layer._replace(weight=layer.weight.to("cuda", dtype), bias=layer.bias.cuda())
    made = norm_linear_library(x.to("cuda", dtype), None, on_gpu, gelu=True).cpu().float()
    largest = expected.abs().max()
    apart = (made - expected).abs().max() / largest
    assert apart < (4e-3 if dtype == torch.float16 else 3e-2)
