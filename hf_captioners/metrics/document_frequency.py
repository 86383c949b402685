"""Document frequencies of n-grams, which CIDEr uses and which can be computed once and saved."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hf_captioners.output_files import atomic_file

from .input_checks import check_references
from .integer_map import Integers
from .ngrams import ORDERS, Caption, NGramTable, count, split_captions

_FORMAT = 1


class DocumentFrequency:
    """Document frequencies of n-grams of 1 to 4 words.

    Create one with `per_image` or `per_caption`. The two conventions give different scores. A score is comparable only
    with scores of the same convention and corpus.

    Attributes:
        n_documents: N, the number of documents.
        table: the numbered n-grams.
        counts: `[n-grams]` the number of documents that contain each n-gram, by its index.
        end_token: the token that was appended to every caption, if any. Scorers that use this object also append it to
            candidates and references.
        source: description of the counted documents.

    Examples:
        >>> from hf_captioners.metrics import CiderD, DocumentFrequency
        >>> training = [["a man rides a horse"], ["two dogs run", "dogs on grass"], ["a cat sleeps"]]
        >>> frequency = DocumentFrequency.per_image(training)
        >>> frequency.source
        '3 images'
        >>> CiderD([["a cat on a horse"]], frequency).score(["a cat"]).round(4).tolist()
        [2.5019]
    """

    def __init__(
        self, table: NGramTable, counts: Integers, n_documents: int, unit: str, end_token: Hashable | None
    ) -> None:
        self.table = table
        self.counts = counts
        self.n_documents = n_documents
        self.end_token = end_token
        self._unit = unit

    @classmethod
    def per_image(
        cls, references: Sequence[Sequence[Caption]], end_token: Hashable | None = None
    ) -> DocumentFrequency:
        """Count the images in which each n-gram occurs, as in the definition of CIDEr (Vedantam et al. 2015, Eq. 1).

        Args:
            references: the tokenised captions of each image, as strings or lists of token ids.
            end_token: a token to append to every caption, as ImageCaptioning.pytorch does in training.
        """
        check_references(references)
        words = split_captions([caption for captions in references for caption in captions], end_token)
        images = np.repeat(np.arange(len(references)), [len(captions) for captions in references])
        table = NGramTable(words)
        return cls(table, _count(table, images), len(references), "images", end_token)

    @classmethod
    def per_caption(cls, captions: Sequence[Caption]) -> DocumentFrequency:
        """Count the captions in which each n-gram occurs, as training of meshed-memory-transformer and VisualGPT does.

        Args:
            captions: tokenised captions, as strings or lists of token ids.
        """
        table = NGramTable(split_captions(captions))
        return cls(table, _count(table, np.arange(len(captions))), len(captions), "captions", None)

    @property
    def source(self) -> str:
        """Number and kind of the counted documents, such as `5000 images`."""
        ending = "" if self.end_token is None else f", each caption ending in {self.end_token!r}"
        return f"{self.n_documents} {self._unit}{ending}"

    @cached_property
    def _inverse(self) -> NDArray[np.float64]:
        return np.log(self.n_documents) - np.log(np.maximum(1, self.counts))

    def inverse(self, indices: Integers) -> NDArray[np.float64]:
        """Return log(N / df) of n-grams by their indices. The df of an n-gram that is in no document is 1."""
        inside = np.flatnonzero(indices < len(self.counts))
        values = np.full(len(indices), np.log(self.n_documents))
        values[inside] = self._inverse[indices[inside]]
        return values

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the frequencies to one `.npz` file without pickled objects, which `load` reads."""

        about = {
            "format": _FORMAT,
            "n_documents": self.n_documents,
            "unit": self._unit,
            "end_token": self.end_token,
            "words": self.table.words,
        }
        header = np.frombuffer(json.dumps(about, default=int).encode(), dtype=np.uint8)
        with atomic_file(path, "wb") as file:
            np.savez_compressed(file, about=header, keys=self.table.keys, counts=self.counts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DocumentFrequency:
        """Read document frequencies from a file that `save` has written.

        Raises:
            ValueError: the file has a different content or a newer format.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                keys, counts = file["keys"], file["counts"]
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise ValueError(
                f"{path} is not a file of document frequencies. Create one with "
                f"`DocumentFrequency.per_image(references).save(path)`."
            ) from error
        if about["format"] != _FORMAT:
            raise ValueError(
                f"{path} has format {about['format']}, this version reads {_FORMAT}. Create the file again."
            )
        table = NGramTable.of_keys(about["words"], keys)
        return cls(table, counts, about["n_documents"], about["unit"], about["end_token"])


def _count(table: NGramTable, documents: Integers) -> Integers:
    """Return the number of documents that contain each n-gram; `documents` is the document of each caption."""
    keys, _ = count(documents[table.captions] * max(1, table.size) + table.grams // ORDERS)
    return np.bincount(keys % max(1, table.size), minlength=table.size)
