"""What a flood's record says of itself."""

import pytest
from made_records import record_of

from labkit.errors import RecordError
from labkit.results.flood import FloodRecord, FloodRun

SETTINGS = {
    "model": "random:small",
    "room_for": 40,
    "pack_window": 16,
    "longest_prompt": 900,
    "max_new_tokens": 300,
}


def flood_run(memory: tuple[int, ...] = (), rung: str = "10") -> FloodRun:
    counts = {
        name: 1 for name in FloodRun.SHAPE if name not in ("rung", "policy", "ended", "memory", "tensors")
    }
    counts |= {"seconds": 2.0, "generated_tokens": 500}
    return FloodRun(
        rung=rung,
        policy="fifo",
        ended={"length": 3, "refused": 2},
        memory=memory,
        tensors=memory[:-1],
        **counts,
    )


def test_rates_and_sums():
    run = flood_run()
    assert (run.num_ended, run.tokens_per_second) == (5, 250.0)


@pytest.mark.parametrize(
    ("memory", "growth"), [((), 1.0), ((5, 9), 1.0), ((1,) * 9 + (8,), 1.0), ((1,) * 9 + (8, 20, 10), 1.25)]
)
def test_memory_grows_from_the_thousandth_request_on(memory, growth):
    assert flood_run(memory).memory_growth == flood_run((*memory, 7)).tensor_growth == growth


@pytest.mark.parametrize(
    ("memory", "last"),
    [((), 0), ((5, 5, 5), 0), ((500, 501, 502), 0), ((5, 9, 9), 200), ((5, 9, 7, 9, 20, 20), 500)],
)
def test_when_memory_was_last_more_than_ever(memory, last):
    assert flood_run(memory).last_growth == last


def test_a_record_is_what_it_was_when_it_is_read_again():
    record = record_of("flood", [flood_run((1, 2)), flood_run(rung="07")], **SETTINGS)
    assert FloodRecord.from_dict(record.to_dict()) == record
    assert (record.device, record.model) == ("cpu", "random:small")
    assert (record.room_for, record.pack_window) == (40, 16)
    assert (record.longest_prompt, record.max_new_tokens) == (900, 300)
    assert record.runs_of("07") == [flood_run(rung="07")]
    with pytest.raises(RecordError, match="no runs of rung '00'"):
        record.runs_of("00")
