"""The one training program, its projection onto fragments, and its compilation."""
