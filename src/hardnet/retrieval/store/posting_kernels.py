"""Sorting postings by word and finding an image's own among them, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.kernels import compiled


@compiled
def sort_postings(
    words: NDArray[np.int32],
    image_ids: NDArray[np.uint16],
    signatures: NDArray[np.uint64],
    geometry: NDArray[np.uint16],
    offsets: NDArray[np.uint32],
) -> tuple[NDArray[np.uint16], NDArray[np.uint64], NDArray[np.uint16]]:
    """A stable counting sort by word.

    Args:
        words: (P,) int32 of the features.
        image_ids: (P,) uint16.
        signatures: (P, 2) uint64.
        geometry: (P, 3) uint16.
        offsets: (K + 1,) uint32 zeros; becomes where each word begins.

    Returns:
        Image ids, signatures and geometry in the order of the words.
    """
    count = len(offsets) - 1
    for feature in range(len(words)):
        offsets[words[feature] + 1] += np.uint32(1)
    for word in range(count):
        offsets[word + 1] += offsets[word]
    free = offsets[:count].copy()
    sorted_ids = np.empty_like(image_ids)
    sorted_signatures = np.empty_like(signatures)
    sorted_geometry = np.empty_like(geometry)
    for feature in range(len(words)):
        posting = free[words[feature]]
        free[words[feature]] = posting + np.uint32(1)
        sorted_ids[posting] = image_ids[feature]
        sorted_signatures[posting, 0] = signatures[feature, 0]
        sorted_signatures[posting, 1] = signatures[feature, 1]
        sorted_geometry[posting, 0] = geometry[feature, 0]
        sorted_geometry[posting, 1] = geometry[feature, 1]
        sorted_geometry[posting, 2] = geometry[feature, 2]
    return sorted_ids, sorted_signatures, sorted_geometry


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
