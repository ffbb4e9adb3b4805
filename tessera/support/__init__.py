"""What every room may use: caches, imports, fields, facts about this machine."""
