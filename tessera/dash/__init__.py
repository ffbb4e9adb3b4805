"""The dashboard: run folders, read and served to a browser."""
