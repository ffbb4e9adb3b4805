"""From what the user asks for to a plan."""
