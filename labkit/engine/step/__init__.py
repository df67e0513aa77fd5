"""One decode step, as each rung makes it."""
