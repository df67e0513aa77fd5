"""Before lesson 00: how a CPU drives a GPU."""
