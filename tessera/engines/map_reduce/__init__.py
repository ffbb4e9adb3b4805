"""Map-reduce over independent items, on every engine."""
