"""The retrieval benchmark: collections with ground truth, rankings of them, and their scores."""
