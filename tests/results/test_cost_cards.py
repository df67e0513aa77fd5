"""Recorded cost cards: which step a card is of, and counts beside each other."""

from dataclasses import asdict, replace

from made_records import card_of, card_record

from labkit import LADDER
from labkit.ladder import CUDA_GRAPHS
from labkit.results import counts_table
from labkit.results.cost_cards import CardKey

RECORD = card_record(
    [
        ("06", 8, "random:gpt2", (20, 23) * 4, card_of(60)),
        ("06", 8, "random:gpt2", (20,) * 8, card_of(61)),
        ("07", 8, "random:gpt2", (20, 23) * 4, card_of(69)),
        ("07", 8, "random:gpt2", (20, 23) * 4, card_of(70)),
        ("06", 8, "data/tiny-gpt2", (20, 23) * 4, card_of(None, aten_ops=5)),
    ]
)


def test_cards_are_picked_by_lengths_model_and_rungs():
    cards = RECORD.cards(lengths={20, 23})
    assert {key: card.device.kernels for key, card in cards.items()} == {("06", 8): 60, ("07", 8): 70}
    assert list(RECORD.cards(lengths=(20,))) == [("06", 8)]
    assert list(RECORD.cards((20, 23), rungs=("07",))) == [("07", 8)]
    (tiny,) = RECORD.cards((20, 23), "data/tiny-gpt2").values()
    assert tiny.device is None and tiny.host.aten_ops == 5


def test_counts_stand_beside_each_other_in_the_order_asked_for():
    cards = {"a": card_of(7, aten_ops=3), "b": card_of(None, aten_ops=4)}
    table = counts_table(cards, {"aten_ops": "operators", "kernels": "GPU kernels"})
    assert table.loc["operators"].tolist() == [3, 4]
    assert table.loc["GPU kernels", "a"] == 7 and table.isna().loc["GPU kernels", "b"]
    assert list(
        counts_table({"b": cards["b"]}, {"kernels": "GPU kernels", "aten_ops": "operators"}).index
    ) == ["operators"]


def test_a_record_older_than_an_option_counts_with_the_options_default():
    now = CardKey("model", asdict(LADDER["05"].options), 64, (20,) * 8)
    older = replace(
        now, options={k: v for k, v in now.options.items() if k not in ("launch", "layer_tables")}
    )
    assert older.is_same(now)
    assert not older.is_same(replace(now, options=asdict(CUDA_GRAPHS)))
    assert not replace(older, prompt_lens=(20,) * 64).is_same(now)


def test_device_counts_are_those_of_the_same_step():
    key = CardKey("random:gpt2", {}, 64, (20,) * 8)
    assert RECORD.device_counts(key).kernels == 61
    assert RECORD.device_counts(replace(key, block_size=32)) is None
    assert RECORD.device_counts(replace(key, model="data/tiny-gpt2", prompt_lens=(20, 23) * 4)) is None
