"""What algorithms are assembled from."""
