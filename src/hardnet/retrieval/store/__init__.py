"""The index on disk: immutable segments, one manifest, one writer, many readers."""
