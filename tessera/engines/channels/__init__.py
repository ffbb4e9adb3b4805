"""Channels: how streams cross between replicas, one kind for each engine."""
