"""Helpers for the whole package: cache, imports, fields, files, leaf paths, facts about this machine."""
