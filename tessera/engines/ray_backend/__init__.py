"""What the Ray engine adds: actors, node memory, capacity, collectives, clusters on this machine."""
