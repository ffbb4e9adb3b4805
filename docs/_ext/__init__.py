"""What the documentation takes from the code while it is built."""
