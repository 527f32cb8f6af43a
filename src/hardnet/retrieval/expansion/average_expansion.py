"""Average query expansion (Chum et al. 2007): the query is averaged with what geometry verified.

The word vectors of the query and of the best verified images are averaged, and the average is the
query of a second search. Of an image only those words count that lie in the query's region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.ranking.terms import BowTerms, bow_terms
from hardnet.retrieval.verification.query_region import features_in_region

if TYPE_CHECKING:
    from hardnet.retrieval.ranking.query import Query
    from hardnet.retrieval.ranking.shard import ImageFeatures
    from hardnet.retrieval.verification.spatial import Verified

AVERAGED_IMAGES = 49
"""At most so many images are averaged with the query: fewer than 50, as published."""


def average_expansion(
    query: Query,
    verified: Sequence[Verified],
    features_of: Callable[[NDArray[np.int64]], Sequence[ImageFeatures]],
    images: int = AVERAGED_IMAGES,
) -> BowTerms:
    """The bag of words of the second search.

    Each vector is a tf vector in the sense of the paper, how often a word occurs over how many
    words there are, so that an image of many features has no more say than another. Rare words
    are weighted up by the scoring.

    Args:
        query: its nearest words are used.
        verified: best first; images that are not verified are passed over.
        features_of: the features of images, in the order of their numbers.
        images: at most so many of the best are used.

    Returns:
        The average; the query's own words if no image is verified.
    """
    chosen = [one for one in verified if one.transform is not None][:images]
    features = features_of(np.array([one.image for one in chosen], np.int64)) if chosen else []
    bags = [query.words[:, 0]]
    bags += [
        features_in_region(query, one, image).words
        for one, image in zip(chosen, features, strict=True)
    ]
    bags = [bag for bag in bags if len(bag)]
    if len(bags) < 2:
        return bow_terms(query)
    words, where = np.unique(np.concatenate(bags), return_inverse=True)
    weights = np.concatenate([np.full(len(bag), 1 / len(bag)) for bag in bags])
    tf = np.bincount(where, weights, len(words)) / len(bags)
    return BowTerms(words.astype(np.int32), tf.astype(np.float32))
