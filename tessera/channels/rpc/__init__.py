"""Links between machines: messages travel as calls to the receiving replica."""
