"""Greedy episodes of trained params, and how sure their figures are."""
