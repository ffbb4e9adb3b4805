"""A compiler from traced functions to NumPy, for acting with small networks on the host."""
