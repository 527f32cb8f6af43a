"""Scores of the images of an index for a query."""
