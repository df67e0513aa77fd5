"""`python -m labkit.bench COMMAND`, a command a file."""
