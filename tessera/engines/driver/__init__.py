"""The driver's side of engines with a process for every replica."""
