"""One replica: its programs, its slots, and the process that it runs in."""
