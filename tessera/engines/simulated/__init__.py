"""The engine in virtual time: the programs, ports and disciplines of the others, with costs in the place of work."""
