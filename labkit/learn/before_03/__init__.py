"""Before lesson 03: how a GPU runs a kernel."""
