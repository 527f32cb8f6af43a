"""From photographs to an index."""
