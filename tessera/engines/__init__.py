"""Engines: what runs a plan."""
