"""Sorting postings by word and finding an image's own among them, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.compiled import compiled


@compiled
def sort_by_word(
    words: NDArray[np.int32], count: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """A stable counting sort.

    Args:
        words: (P,) each below ``count``.
        count: of words in the vocabulary, K.

    Returns:
        (P,) uint32, which feature becomes each posting; (K + 1,) uint32, where each word begins.
    """
    offsets = np.zeros(count + 1, np.uint32)
    for feature in range(len(words)):
        offsets[words[feature] + 1] += np.uint32(1)
    for word in range(count):
        offsets[word + 1] += offsets[word]
    free = offsets[:-1].copy()
    order = np.empty(len(words), np.uint32)
    for feature in range(len(words)):
        word = words[feature]
        order[free[word]] = feature
        free[word] += np.uint32(1)
    return order, offsets


@compiled
def list_words(
    offsets: NDArray[np.uint32],
    image_ids: NDArray[np.uint16],
    forward_offsets: NDArray[np.uint32],
) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """The other direction: which words each image has, and in how many images each word is.

    Args:
        offsets: (K + 1,) of the postings of each word.
        image_ids: (P,) ascending within a word.
        forward_offsets: (I + 1,) of the words of each image.

    Returns:
        (P, 3) uint8, words of the images, little endian, ascending within an image;
        (K,) uint32, images of each word.
    """
    free = forward_offsets[:-1].copy()
    forward = np.empty((len(image_ids), 3), np.uint8)
    documents = np.zeros(len(offsets) - 1, np.uint32)
    for word in range(len(offsets) - 1):
        last = np.int64(-1)
        for posting in range(offsets[word], offsets[word + 1]):
            image = np.int64(image_ids[posting])
            slot = free[image]
            forward[slot, 0] = word & 255
            forward[slot, 1] = (word >> 8) & 255
            forward[slot, 2] = (word >> 16) & 255
            free[image] = slot + np.uint32(1)
            if image != last:
                documents[word] += np.uint32(1)
                last = image
    return forward, documents


@compiled
def find_postings(
    image: int,
    words: NDArray[np.int32],
    offsets: NDArray[np.uint32],
    image_ids: NDArray[np.uint16],
) -> NDArray[np.int64]:
    """Where the postings of an image lie.

    Args:
        image: its number in the segment.
        words: (n,) the image's words, ascending, with repeats.
        offsets: (K + 1,) of the postings of each word.
        image_ids: (P,) ascending within a word.

    Returns:
        (n,) int64, in the order of ``words``.
    """
    out = np.empty(len(words), np.int64)
    for i in range(len(words)):
        word = words[i]
        if i > 0 and words[i - 1] == word:
            out[i] = out[i - 1] + 1
            continue
        low, high = np.int64(offsets[word]), np.int64(offsets[word + 1])
        while low < high:
            middle = (low + high) // 2
            if image_ids[middle] < image:
                low = middle + 1
            else:
                high = middle
        out[i] = low
    return out
