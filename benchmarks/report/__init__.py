"""Tables and figures of the benchmark scripts."""
