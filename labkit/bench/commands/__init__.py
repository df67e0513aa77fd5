"""`python -m labkit.bench COMMAND`, a command per file."""
