"""Every rung has a point for each thing that can fail in its step, and a new watch point is one by itself."""

import pytest
from fault_points import fault_points
from helpers import ENGINES, every_engine, make_engine

from labkit.engine.step.staging import TokenCopy
from labkit.errors import OptionError
from labkit.watch import planted_failure

# What can fail, and the names of the calls in which it does: a rung has one of them at least.
THINGS = {
    "a block's allocation": {"allocate_block"},
    "a copy of a shared block": {"copy_on_write"},
    "a prompt's forward": {"prefill"},
    "storing a prompt": {"append_prompt"},
    "attention": {"attention"},
    "the append": {"append", "kv_append", "attention"},  # one kernel from rung 07 on
    "telling the device where blocks are": {"build", "send_rows"},
    "reading the tokens": {"read", "next_tokens"},
    "admission": {"admit"},
    "the prefix cache": {"lookup"},
}


@every_engine
def test_every_rung_has_a_point_for_each_thing_that_can_fail(options):
    """A first token is drawn on the host up to rung 12; the others there, or on the device."""
    points = fault_points(make_engine(options=options))
    names = {point.split(".")[1] for point in points}
    assert not [thing for thing, calls in THINGS.items() if not calls & names]
    assert len({"PaddedPrefill.sample", "FirstTokenSampler.sample"} & points.keys()) == 1
    on_device = [point for point in points if point.endswith((".advance", ".draw_and_advance"))]
    assert len(on_device) == (0 if "DecodeStep.sample" in points else 2)
    for point, (owner, name) in points.items():
        kind = owner if isinstance(owner, type) else type(owner)
        assert point == f"{kind.__name__}.{name}"
        with planted_failure(owner, name):
            pass
    assert len(points) > 20


def test_points_are_those_of_the_engine():
    points = fault_points(make_engine(options=ENGINES["10"], prefix_cache=False))
    assert points["TokenCopy.read"] == (TokenCopy, "read")
    assert not [point for point in points if point.startswith("PrefixCache")]
    assert "KVBlockManager.block_infos" not in points  # it is no call


def test_a_watch_point_that_a_class_declares_is_a_fault_point(monkeypatch):
    engine = make_engine()
    with pytest.raises(OptionError), planted_failure(engine.scheduler, "remove"):
        pass
    assert "OnlineScheduler.remove" not in fault_points(engine)
    monkeypatch.setattr(type(engine.scheduler), "watch_points", ("remove",))
    assert "OnlineScheduler.remove" in fault_points(engine)
