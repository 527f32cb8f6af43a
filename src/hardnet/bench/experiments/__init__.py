"""The experiments of the paper as grids of training runs, and what their numbers show."""
