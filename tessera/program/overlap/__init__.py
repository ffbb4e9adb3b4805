"""Loops in slices that advance in turn, so that acting and stepping overlap."""
