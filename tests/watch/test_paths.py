"""How the block of each token was made ready."""

from labkit import watch
from labkit.watch.paths import READY_PATHS


def test_paths_are_recorded_by_step_and_once_for_all_layers(engine):
    steps = watch.record_paths(engine, 6)
    none = dict.fromkeys(READY_PATHS, 0)
    assert steps == [
        none,  # admission
        {**none, "copy_on_write": 3},
        {**none, "in_place": 2, "boundary": 1},
        {**none, "in_place": 3},
        {**none, "in_place": 1, "boundary": 2},
        {**none, "in_place": 3},
    ]
