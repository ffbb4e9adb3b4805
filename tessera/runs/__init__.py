"""One run: its loop, its folder, checkpoints, metrics, display and guards."""
