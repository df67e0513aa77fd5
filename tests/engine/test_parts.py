"""Parts of the caller's own in an engine: used where the option says, refused where nothing needs them."""

import pytest
from helpers import GREEDY, make_engine, tokens_alone, tokens_of

from labkit import LADDER
from labkit.engine.overlap import ReadOneBehind
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import FusedDeviceStep
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import paged_attention_append_plain, paged_attention_plain
from labkit.kvcache import (
    AppendBatched,
    BlockPrefixCache,
    CachedBlockTables,
    IdentityPosWrite,
    MutableInfoBlockManager,
    OneTableBlockManager,
    PrefixCache,
)

PROMPTS = [(1, 2, 3), (4, 5), tuple(range(20, 30)), (1, 2, 3)]
# By rung: the options that it has a use for, each with the package's own part or a likeness of it.
OWN = {
    "00": {"attention": paged_attention_plain},
    "01": {"block_tables": CachedBlockTables},
    "02": {"kv_append": AppendBatched},
    "04": {"kv_write": IdentityPosWrite},
    "05": {"block_info": MutableInfoBlockManager, "attention": paged_attention_plain},
    "06": {"block_tables": DeviceSlots, "block_info": MutableInfoBlockManager, "layer_kernels": DeviceStep},
    "07": {"layer_tables": OneTableBlockManager, "kv_write": paged_attention_append_plain},
    "08": {"launch": lambda device_step: device_step},
    "09": {"layer_kernels": FusedDeviceStep, "kv_write": paged_attention_append_plain},
    "10": {"readback": ReadOneBehind, "prefixes": PrefixCache},
    "14": {"prefixes": BlockPrefixCache},
}
ASKED_PER_LAYER = (paged_attention_plain, paged_attention_append_plain)  # functions, called in every step
CASES = [(rung, option) for rung, parts in OWN.items() for option in parts]


class Called:
    """A part that counts how often it is asked to make something, or to do it."""

    def __init__(self, part) -> None:
        self.part, self.calls = part, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.part(*args, **kwargs)


@pytest.mark.parametrize(("rung", "option"), CASES)
def test_a_part_of_ones_own_makes_what_the_package_would_make(rung, option):
    own = Called(OWN[rung][option])
    engine = make_engine(options=LADDER[rung].options, parts={option: own})
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == [tokens_alone(p, GREEDY) for p in PROMPTS]
    engine.check_integrity()
    assert own.calls > 8 if own.part in ASKED_PER_LAYER else own.calls == 1
