"""The host's sampler and the device's."""

import torch

from labkit.learn.lesson_06.sampling import sampled_both_ways


def test_both_samplers_agree_on_every_row():
    table = sampled_both_ways(torch.device("cpu"), rows_each=20)
    assert (table["the same token"] == 19).all()
    assert (table["None on the host, -1 on the device"] == 1).all()
    assert (table["distinct tokens drawn"] > 10).all()
