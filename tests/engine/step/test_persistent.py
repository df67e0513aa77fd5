"""The layers of a fused step in one kernel: what the step's own layers make of the same numbers."""

import pytest
import torch
from attention_append_cases import needs_triton

from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import PLAIN, FusedDeviceStep, triton_kernels
from labkit.engine.step.persistent import FEW_ROWS, WIDEST, PersistentLayers
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import paged_attention_append_plain, triton_status
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.tiles import NOTHING_MEASURED
from labkit.kvcache import MutableInfoBlockManager
from labkit.model import GPT2Config
from labkit.model.checkpoint import random_network

DEVICE = torch.device("cuda" if triton_status().mode == "native" else "cpu")
CONFIG = GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=3, n_head=2)


def make_step() -> FusedDeviceStep:
    """A step of three layers over a pool of random numbers, with two requests and a padding slot."""
    kv_manager = MutableInfoBlockManager(
        num_layers=3,
        num_heads=2,
        head_dim=8,
        block_size=4,
        max_blocks_per_layer=20,
        max_blocks_per_seq=8,
        device=DEVICE,
        dtype=torch.float32,
        kv_write=None,
    )
    generator = torch.Generator(DEVICE).manual_seed(0)
    for cache in (kv_manager.k_cache, kv_manager.v_cache):
        cache.normal_(generator=generator)
    slots = DeviceSlots(kv_manager, max_batch_size=2)
    slots.context_lens[:2] = torch.tensor([5, 11], dtype=torch.int32)
    order = torch.randperm(16, generator=generator, device=DEVICE).view(2, 8)
    slots.block_tables[:, :2] = order.int()
    network = random_network(CONFIG, seed=0).to(DEVICE)
    return FusedDeviceStep(slots, network, AttendAndWrite(kv_manager, paged_attention_append_plain), PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("on_triton", [False, pytest.param(True, marks=needs_triton)])
@pytest.mark.parametrize("rows", [[0], [1, 0], [1, 2]], ids=str)
def test_it_is_the_steps_layers(rows: list[int], on_triton: bool):
    assert len(rows) <= FEW_ROWS
    one, other = make_step(), make_step()
    slot_mapping = torch.tensor(rows, device=DEVICE)
    x = torch.randn(len(rows), 16, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE)
    expected, statistics = x, row_statistics(x, 16)
    with torch.inference_mode():
        one.attention.begin(one.slots, slot_mapping, 11)
        for layer_idx in range(3):
            expected, statistics = one.layer(layer_idx, expected, statistics)
        other.kernels = triton_kernels(DEVICE, NOTHING_MEASURED) if on_triton else PLAIN
        out = PersistentLayers(other)(x.clone(), slot_mapping)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    for name in ("k_cache", "v_cache"):
        stored, wanted = (getattr(step.attention.kv_manager, name) for step in (other, one))
        torch.testing.assert_close(stored, wanted, rtol=1e-5, atol=1e-5)


def test_it_is_for_narrow_layers_and_the_packages_attention():
    step = make_step()
    assert PersistentLayers.fits(step)
    step.layers[0] = step.layers[0]._replace(
        qkv=step.layers[0].qkv._replace(weight=torch.zeros(3, WIDEST + 1))
    )
    assert not PersistentLayers.fits(step)
    step = make_step()
    step.attention.attention = lambda *arguments: paged_attention_append_plain(*arguments)
    assert not PersistentLayers.fits(step)
