"""How long a rank waits for another."""

from types import SimpleNamespace

import pytest

from labkit.errors import RankError
from labkit.parallel import ranks
from labkit.parallel.ranks import TorchRanks


@pytest.mark.parametrize(
    ("slices", "is_late"),
    [([0.2] * 40, False), ([0.2] * 20 + [3600.0] + [0.2] * 20, False), ([0.2] * 60, True)],
    ids=["in time", "with an hour's pause of the machine", "late"],
)
def test_a_wait_ends_after_its_time_and_a_pause_of_the_machine_is_none(
    monkeypatch: pytest.MonkeyPatch, slices: list[float], is_late: bool
):
    now = 0.0
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: now))
    left = iter(slices)

    def ends() -> bool:
        nonlocal now
        took = next(left, None)
        now += took or 0.0
        return took is None

    rank = SimpleNamespace(
        timeout=10.0,
        rank=0,
        _num_steps=1,
        _store=SimpleNamespace(set=lambda name, value: None),
        _late=lambda: "rank 1",
        _fail=lambda fault: fault,
        check=lambda: None,
    )
    if is_late:
        with pytest.raises(RankError, match=r"^rank 1 did not come within 10 seconds$"):
            TorchRanks._wait(rank, ends)
        assert 10 < now < 10.5
    else:
        TorchRanks._wait(rank, ends)
