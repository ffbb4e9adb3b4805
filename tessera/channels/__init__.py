"""Channels: how streams cross between replicas, whatever engine runs them."""
