"""The shuffled control: the same captions, scored against the references of a different image."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .cider import CiderD
from .document_frequency import DocumentFrequency
from .ngrams import Caption


def shuffled_cider_d(
    predictions: Sequence[Caption],
    references: Sequence[Sequence[Caption]],
    document_frequency: DocumentFrequency | None = None,
) -> NDArray[np.float64]:
    """Return CIDEr-D of each caption against the references of the next image; the last one gets those of the first.

    A captioner that looks at its images scores far lower here than in `CiderD`. One that writes typical captions of
    the data set scores about the same.

    Args:
        predictions: one tokenised caption per image, as strings or lists of token ids.
        references: the tokenised reference captions of each image.
        document_frequency: the document frequencies. By default they are counted in `references`.

    Returns:
        `[images]` scores between 0 and 10.

    Raises:
        ValueError: there is only one image, or the numbers of captions and images differ.

    Examples:
        >>> from hf_captioners.metrics import CiderD, shuffled_cider_d
        >>> references = [["a man rides a horse"], ["two dogs run on grass"], ["a man with two dogs"]]
        >>> captions = ["a man on a horse", "two dogs run", "a man walks two dogs"]
        >>> own, shuffled = CiderD(references).score(captions), shuffled_cider_d(captions, references)
        >>> round(float(own.mean()), 4), round(float(shuffled.mean()), 4)
        (2.6394, 0.7112)
    """
    if len(references) < 2:
        raise ValueError(
            f"There is {len(references)} image, but the shuffled control compares captions with the references of the "
            "next image: pass at least 2."
        )
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions for {len(references)} images, expected one per image.")
    following = np.roll(np.arange(len(references)), -1)
    return CiderD(references, document_frequency).score(predictions, following)
