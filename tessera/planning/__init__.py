"""From the user's request to a plan."""
