"""Pure functions of arrays: returns, losses, distributions, statistics, exploration, shuffles."""
