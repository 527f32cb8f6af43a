"""A page to match and search photos, and the REST API behind it; see ``hardnet serve``."""
