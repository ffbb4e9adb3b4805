"""What an algorithm costs in an environment on this machine, measured."""
