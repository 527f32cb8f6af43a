"""Query expansion: what the first search found is added to the query of a second one."""
