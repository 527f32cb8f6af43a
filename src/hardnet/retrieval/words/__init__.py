"""Visual words: the vocabulary, its training, the nearest words and the signatures."""
