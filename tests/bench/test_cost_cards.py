"""Cost cards: what is counted, against the formulas; and the trace of a GPU step, against its events."""

from dataclasses import dataclass, replace

import pytest
import torch
from helpers import every_engine, make_engine, small_model

from labkit import LADDER, CacheConfig, InferenceEngine
from labkit.bench import cost_card
from labkit.bench.cost_cards import RECORDED, cards_text, counts_of_alike, engine_key, read_device_counts
from labkit.bench.limit import Bandwidth
from labkit.bench.record import make_record, write_record
from labkit.kvcache import KVBlockManager
from labkit.paths import RESULTS
from labkit.results import CostCard, DeviceCounts, HostCounts, files
from labkit.results.cost_cards import ROWS, RungCard
from labkit.results.files import load_file
from labkit.watch import steady_prompts

L, H, D = 2, small_model().config.n_head, small_model().config.head_dim


@pytest.fixture(autouse=True)
def no_records(tmp_path, monkeypatch):
    """What is counted here is counted here."""
    monkeypatch.setattr(files, "RESULTS", tmp_path)


def card_of(batch_size: int, lengths=(3, 5), **settings) -> CostCard:
    settings = {"max_batch_size": 8, "block_size": 32, "prefix_cache": False, **settings}
    return cost_card(make_engine(**settings), steady_prompts(batch_size, lengths))


IDS_POSITIONS_LENGTHS = 3  # index tensors of every step
ROW_TENSORS = {"rebuilt": 1, "cached": 0}  # a layer's; nothing is made while no block comes
# How a layer's batch is written at equal and at differing positions, and the index tensors that takes.
WRITES = {
    "indexed": {"equal": ("indexed", 3), "ragged": ("indexed", 3)},
    "full_batch": {"equal": ("full_batch", 1), "ragged": ("generic", 3)},
    "identity_pos": {"equal": ("full_batch", 1), "ragged": ("identity_pos", 2)},
}


@dataclass
class Expected:
    """What a step of B requests costs by the source; synchronizing: the copies that the host waits for."""

    manager_calls: int
    index_tensors: int
    append_paths: dict[str, int]
    synchronizing: int


def expected_of(options, num_layers: int, B: int, positions: str) -> Expected:
    asked_before = B + 1  # who grows by a block, and how many are free
    if options.block_tables == "resident":
        num_tables = 1 if options.layer_tables == "shared" else num_layers
        paths = {"in_place": num_tables * B, options.kv_write: num_layers}
        if options.readback == "one_behind":  # nothing is asked while no block is full
            return Expected(0, 0, paths, 0)
        return Expected(num_tables + asked_before, 0, paths, 0)
    path, write_tensors = None, 0
    if options.kv_append != "per_token":
        path, write_tensors = WRITES[options.kv_write][positions]
    appends = num_layers if path else num_layers * B
    layer_offsets = num_layers  # asked for by the tables
    return Expected(
        appends + layer_offsets + asked_before,
        IDS_POSITIONS_LENGTHS + num_layers * (ROW_TENSORS[options.block_tables] + write_tensors),
        {"in_place": num_layers * B} | ({path: num_layers} if path else {}),
        IDS_POSITIONS_LENGTHS + num_layers * write_tensors,
    )


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["equal", "ragged"])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
@every_engine
def test_a_step_costs_what_its_source_says(options, batch_size, positions):
    if options.speculation != "none":
        pytest.skip("what a step costs that verifies drafts depends on the text")
    B = batch_size
    card = card_of(B, lengths=(4,) if positions == "equal" else (3, 5), options=options)
    expected = expected_of(options, L, B, "equal" if B == 1 else positions)
    assert card.host.manager_calls == expected.manager_calls
    assert card.host.kv_block_infos == (L * B if options.block_info == "replaced" else 0)
    assert card.host.index_tensors == expected.index_tensors
    assert card.host.kv_bytes_written == 2 * L * B * H * D * 4  # on every rung the same
    assert card.append_paths == expected.append_paths
    assert card.batch_size == B


class CallersOwn(KVBlockManager):
    """A caller's manager, whose calls of its own methods are none from outside."""

    def append_token_batch(self, *args):
        self.append_token_batch_fast_path(*args)


def test_calls_of_a_caller_s_own_manager_are_counted():
    settings = {"block_size": 32, "prefix_cache": False, "options": LADDER["05"].options}
    engine = make_engine(**settings, parts={"block_info": CallersOwn})
    card, package = cost_card(engine, steady_prompts(3, (4,))), card_of(3, (4,), **settings)
    assert card.host.manager_calls == package.host.manager_calls


def test_steps_that_meet_a_boundary_make_no_card():
    with pytest.raises(ValueError, match=r"must be alike, but took .*boundary"):
        card_of(2, lengths=(3,), block_size=4)


# --- the GPU's columns -----------------------------------------------------------------------------

EVENTS = [
    {"cat": "kernel", "name": "gemm"},
    {"cat": "kernel", "name": "_paged_attn_decode_kernel"},
    {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "args": {"bytes": 64}},
    {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": {"bytes": 1000}},
    {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "args": {"bytes": 8}},
    {"cat": "gpu_memset", "name": "Memset"},
    {"cat": "cuda_runtime", "name": "cudaLaunchKernel"},
    {"cat": "cuda_runtime", "name": "cudaStreamSynchronize"},
    {"cat": "cuda_runtime", "name": "cudaStreamSynchronize"},
    {"cat": "cuda_runtime", "name": "cudaDeviceSynchronize"},
    {"name": "an event without a category"},
]


def test_a_gpu_trace_is_counted():
    counts = read_device_counts(EVENTS, "H100")
    assert counts == DeviceCounts(2, 2, 1064, 1, 1, 2, "counted on H100")


def test_without_a_gpu_the_columns_come_from_the_record_of_the_same_step_and_no_readers(tmp_path):
    engine = make_engine(max_batch_size=8, block_size=32, prefix_cache=False)
    prompts = steady_prompts(2, (3, 5))
    assert cost_card(engine, prompts).device is None
    for name, date, kernels in ((RECORDED, "2026-01-01", 5), ("cost_cards_mine", "2026-02-01", 7)):
        write_card_record(tmp_path / f"{name}.json", date, engine_key(engine, prompts), kernels)
    card = cost_card(engine, prompts)
    assert card.device == DeviceCounts(5, 2, 1064, 1, 1, 2, "recorded, counted on H100")
    assert list(card.column()) == list(ROWS)
    assert "recorded, counted on H100" in card.table().columns.name
    assert cost_card(engine, steady_prompts(2, (3,))).device is None  # another step


def write_card_record(path, date, key, kernels):
    host = HostCounts(1, 1, 1, 1, 1)
    card = CostCard(2, {}, host, DeviceCounts(kernels, 2, 1064, 1, 1, 2, "counted on H100"))
    sample = RungCard("00", 2, key, card)
    made = make_record("cost_card", torch.device("cpu"), Bandwidth(1e9, 1e9), {"model": key.model}, [sample])
    write_record(replace(made, date=date), path)


@pytest.mark.cuda
@pytest.mark.parametrize("rung", LADDER)
@pytest.mark.parametrize("lengths", [(20,), (20, 23)], ids=["equal", "ragged"])
def test_on_a_gpu_the_copies_are_those_of_the_source(lengths, rung):
    """Ids, positions, lengths and the indices of writes go over pageable, the tables pinned; tokens come
    back."""
    from labkit import SchedulerConfig, load_model

    model, B = load_model("data/tiny-gpt2"), 4
    options = LADDER[rung].options
    engine = InferenceEngine(
        model,
        options,
        device="cuda",
        cache=CacheConfig(prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=B, prefill_max_batch_size=B),
    )
    cards = [cost_card(engine, steady_prompts(B, lengths)) for _ in range(2)]
    device = cards[0].device
    assert cards[0] == cards[1]
    num_layers = model.config.n_layer
    tables = num_layers * B * (model.config.n_positions // 64) * 4
    expected = expected_of(options, num_layers, B, "equal" if len(lengths) == 1 else "ragged")
    assert device.h2d_synchronizing == expected.synchronizing
    if options.block_tables == "resident":
        tokens = 0 if options.latency == "hidden" else 1  # there a kernel brings them
        assert (device.h2d_copies, device.h2d_bytes, device.d2h_copies) == (0, 0, tokens)
    else:
        assert device.h2d_copies == device.h2d_synchronizing + 1
        indices = expected.synchronizing - IDS_POSITIONS_LENGTHS
        assert device.h2d_bytes == tables + B * (8 + 8 + 4) + indices * B * 4
        assert device.d2h_copies == 2  # whether the logits are finite, and the tokens
        assert device.kernels > num_layers * (2 if options.kv_append != "per_token" else 2 * B)
    assert device.source.startswith("counted on ")


def test_a_step_that_was_never_recorded_has_the_counts_of_one_that_asks_for_as_much():
    def card(manager_calls, aten_ops, kernels):
        device = DeviceCounts(kernels, 1, 1, 1, 1, 1, "made up")
        return CostCard(1, {}, HostCounts(manager_calls, 1, aten_ops, 1, 1), device)

    below, package = card(9, 90, 9), card(1, 10, 1)
    assert counts_of_alike(card(5, 90, 0), (below, package)) == below.device
    assert counts_of_alike(card(5, 10, 0), (below, package)) == package.device
    assert counts_of_alike(card(5, 50, 0), (below, package)) is None
    assert counts_of_alike(card(5, 90, 0), (below, card(1, 90, 1))) is None


@pytest.mark.slow
def test_cost_card_counts_every_rung_and_batch(recorded, capsys):
    line = "cost-card --device cpu --models random:small --batch-sizes 1,2"
    samples = recorded(line)["samples"]
    assert "calls into KVBlockManager" in capsys.readouterr().out
    lengths = [sample["key"]["prompt_lens"] for sample in samples if sample["rung"] == "00"]
    assert lengths == [[20], [20], [20, 20], [20, 23]]


def test_a_gpus_recorded_counts_are_told_as_such_in_lines_that_a_terminal_holds(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    recorded = load_file(RESULTS / "cost_cards_h100.json").cards({20}, "data/tiny-gpt2")
    said = cards_text({rung: card for (rung, size), card in recorded.items() if size == 8})
    first, head, *rows = said.splitlines()
    assert first == "GPU rows: counted on NVIDIA H100 80GB HBM3"
    assert head.split()[:2] == ["rung", "00"] and max(map(len, said.splitlines())) <= 100
    assert any(row.startswith("GPU: kernels launched") for row in rows)
