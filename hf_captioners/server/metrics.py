"""Server metrics in the text format of Prometheus, version 0.0.4."""

from collections import Counter
from collections.abc import Iterable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "hf_captioners_"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
CLIENT_GONE = 499  # status of a request whose client went before the answer, by the custom of proxies


class Histogram:
    """Histogram with fixed upper limits of its buckets.

    Args:
        limits: the limits, ascending; a value is counted at the first one that it does not exceed.
    """

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits, self.counts, self.total = limits, [0] * (len(limits) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        place = next((place for place, limit in enumerate(self.limits) if value <= limit), len(self.limits))
        self.counts[place] += 1
        self.total += value

    def lines(self, name: str) -> Iterable[str]:
        """Yield the histogram's lines: cumulative counts, sum and number of values."""
        counted = 0
        for limit, count in zip([*map(_number, self.limits), "+Inf"], self.counts, strict=True):
            counted += count
            yield f'{name}_bucket{{le="{limit}"}} {counted}'
        yield f"{name}_sum {_number(self.total)}"
        yield f"{name}_count {counted}"


class Metrics:
    """Server metrics since start-up."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, str, int]] = Counter()
        self.caption_seconds = Histogram(SECONDS)
        self.batch_images = Histogram(IMAGES)
        self.batch_seconds = Histogram(SECONDS)

    def text(self, in_flight: int, waiting: int, version: str) -> str:
        """Return all metrics as text.

        Args:
            in_flight: requests for captions that are being answered.
            waiting: images that wait for the model.
            version: of this library.
        """
        responses = (
            f'{PREFIX}responses_total{{method="{method}",path="{path}",status="{status}"}} {count}'
            for (method, path, status), count in sorted(self.responses.items())
        )
        parts = [
            ("build_info", "gauge", "Version of the library.", [f'{PREFIX}build_info{{version="{version}"}} 1']),
            ("responses_total", "counter", f"Answers by status; {CLIENT_GONE}: the client had gone.", responses),
            (
                "requests_in_flight",
                "gauge",
                "Requests for captions being answered.",
                _single("requests_in_flight", in_flight),
            ),
            ("images_waiting", "gauge", "Images that wait for the model.", _single("images_waiting", waiting)),
            *(
                (name, "histogram", text, histogram.lines(PREFIX + name))
                for name, text, histogram in (
                    ("caption_seconds", "Seconds from a request to its caption.", self.caption_seconds),
                    ("batch_images", "Images of a batch.", self.batch_images),
                    ("batch_seconds", "Seconds of the model for a batch.", self.batch_seconds),
                )
            ),
        ]
        lines = []
        for name, kind, text, values in parts:
            lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}", *values]
        return "\n".join(lines) + "\n"


def _single(name: str, value: int) -> list[str]:
    return [f"{PREFIX}{name} {value}"]


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 6))
