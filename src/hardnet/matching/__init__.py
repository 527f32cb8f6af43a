"""Matches between images: nearest neighbours, verified geometry, pictures."""
