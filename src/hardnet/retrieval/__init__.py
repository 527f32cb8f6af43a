"""Find the same object or place in a collection of photographs."""
