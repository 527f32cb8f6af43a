"""Structure from motion by pycolmap: what every reconstruction of ours shares."""
