"""Resumable, parallel download of images, with a report of the outcomes."""

from __future__ import annotations

import http.client
import io
import itertools
import json
import urllib.error
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from hf_captioners.output_files import (
    atomic_file,
    explain_write_errors,
    only_writer_of,
    open_for_writing,
    open_plain,
    require_safe_target,
)
from hf_captioners.processing.image_reading import TooLargeError, open_image, web_content

from .images import why_undecodable

LOG_FILE = "downloads.jsonl"
FETCHED = "fetched"
NOT_WEB = "not an http(s) address"
BAD_NAME = "not a file name"
LONGEST_NAME = 200  # bytes; file systems allow 255, with the suffix and that of a temporary file
SUFFIXES = {
    "JPEG": ".jpg",
    "MPO": ".jpg",
    "PNG": ".png",
    "GIF": ".gif",
    "WEBP": ".webp",
    "BMP": ".bmp",
    "TIFF": ".tif",
    "PPM": ".ppm",
    "JPEG2000": ".jp2",
    "AVIF": ".avif",
}
RESUME_ADVICE = "Free some space, then repeat the call; finished images are kept."
WAITING_PER_WORKER = 4
SHOWN_FAILURES = 100


@dataclass(frozen=True, kw_only=True)
class DownloadSettings:
    """Settings of a download.

    Attributes:
        workers: images downloaded at the same time.
        timeout: total seconds per try.
        retries: further tries after a timeout, a broken connection or a server error.
        max_bytes: larger files are not downloaded.
        min_side: images with a shorter side in pixels are refused (such as tracking pixels).
        user_agent: the `User-Agent` header.
    """

    workers: int = 32
    timeout: float = 10.0
    retries: int = 1
    max_bytes: int = 16 * 2**20
    min_side: int = 8
    user_agent: str = "hf-captioners (research; image captioning)"

    def __post_init__(self) -> None:
        """Check the ranges of the settings."""
        for name, minimum in (("workers", 1), ("timeout", 1e-3), ("retries", 0), ("max_bytes", 1)):
            if not getattr(self, name) >= minimum:
                raise ValueError(f"`{name}` is {getattr(self, name)}, expected at least {minimum}.")


@dataclass
class DownloadReport:
    """Number of images by outcome.

    Attributes:
        outcomes: number of images by outcome: `fetched`, `http 404`, `timeout`, `no connection`, `too large`,
            `not an image`, `too small`, `not an http(s) address`, `not a file name`.
        failed: the outcomes of the first images that are not available, by name; `downloads.jsonl` has all.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, outcome: str) -> None:
        """Count the outcome of an image."""
        self.outcomes[outcome] += 1
        if outcome != FETCHED and len(self.failed) < SHOWN_FAILURES:
            self.failed[name] = outcome

    @property
    def failures(self) -> int:
        """Number of images that could not be downloaded."""
        return self.outcomes.total() - self.outcomes[FETCHED]

    @property
    def coverage(self) -> float:
        """Share of the images that are downloaded, 0..1."""
        return self.outcomes[FETCHED] / max(1, self.outcomes.total())

    def summary(self) -> str:
        """Return a summary in one line."""
        failures = ", ".join(
            f"{count:,} x {outcome}" for outcome, count in self.outcomes.most_common() if outcome != FETCHED
        )
        counts = f"{self.outcomes[FETCHED]:,} of {self.outcomes.total():,} images are here ({self.coverage:.1%})"
        return f"{counts}; {failures}" if failures else counts


class _DownloadError(Exception):
    """Raised if an image cannot be downloaded; the message is the outcome."""

    def __init__(self, outcome: str, again: bool = False) -> None:
        super().__init__(outcome)
        self.outcome, self.again = outcome, again


def download_images(
    images: Iterable[tuple[str, str]],
    folder: str | Path,
    settings: DownloadSettings | None = None,
    retry_failed: bool = False,
) -> DownloadReport:
    """Download images into a folder.

    Every finished image is recorded in `downloads.jsonl` there; a later call resumes where a killed one stopped. An
    image file appears under its name when it is complete and decodes. An image that cannot be downloaded is recorded
    with its outcome and ends nothing; one process fills a folder at a time.

    Args:
        wanted: name without suffix, and `http(s)` address, of each image; may be a generator over millions. A name
            is that of a file in the folder: at most 200 bytes of UTF-8, without slashes.
        folder: the folder of the images; made if missing.
        settings: settings of the download.
        retry_failed: retry images that failed in an earlier call.

    Returns:
        The outcomes of all wanted images, earlier calls included.
    """
    settings = settings or DownloadSettings()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer_of(folder / LOG_FILE):
        return _download_missing(images, folder, settings, retry_failed)


def _download_missing(
    images: Iterable[tuple[str, str]], folder: Path, settings: DownloadSettings, retry_failed: bool
) -> DownloadReport:
    outcomes = _read_log(folder / LOG_FILE)
    report = DownloadReport()

    def missing() -> Iterator[tuple[str, str]]:
        for name, url in images:
            outcome = outcomes.get(name)
            if outcome is None or (retry_failed and outcome != FETCHED):
                yield name, url
            else:
                report.add(name, outcome)

    with open_for_writing(folder / LOG_FILE, "a") as log, explain_write_errors(folder, RESUME_ADVICE):
        for name, url, outcome in _fetch_all(missing(), folder, settings):
            report.add(name, outcome)
            log.write(json.dumps({"name": name, "url": url, "outcome": outcome}) + "\n")
            log.flush()
    return report


def _fetch_all(
    images: Iterator[tuple[str, str]], folder: Path, settings: DownloadSettings
) -> Iterator[tuple[str, str, str]]:
    """Download with a bounded number of pending requests; yield name, URL and outcome of each image."""
    with ThreadPoolExecutor(settings.workers) as workers:
        under_way: dict[Future[str], tuple[str, str]] = {}
        while True:
            free = settings.workers * WAITING_PER_WORKER - len(under_way)
            for name, url in itertools.islice(images, free):
                under_way[workers.submit(_fetch, name, url, folder, settings)] = (name, url)
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield *under_way.pop(future), future.result()


def _fetch(name: str, url: str, folder: Path, settings: DownloadSettings) -> str:
    """Download one image and return the outcome."""
    if not is_file_name(name):
        return BAD_NAME
    for tries_left in range(settings.retries, -1, -1):
        try:
            content = _content(url, settings)
            _store(content, name, folder, settings)
            return FETCHED
        except _DownloadError as error:
            if not (error.again and tries_left):
                return error.outcome
    raise AssertionError("unreachable: the last try returns")


def _content(url: str, settings: DownloadSettings) -> bytes:
    """Return the content of a URL, within the limits of time and size."""
    if not url.lower().startswith(("http://", "https://")):
        raise _DownloadError(NOT_WEB)
    try:
        return web_content(url, settings.timeout, settings.max_bytes, settings.user_agent)
    except TooLargeError as error:
        raise _DownloadError("too large") from error
    except urllib.error.HTTPError as error:
        raise _DownloadError(f"http {error.code}", again=error.code >= 500 or error.code == 429) from error
    except TimeoutError as error:
        raise _DownloadError("timeout", again=True) from error
    except urllib.error.URLError as error:
        outcome = "timeout" if isinstance(error.reason, TimeoutError) else "no connection"
        raise _DownloadError(outcome, again=True) from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not an address
        raise _DownloadError("no connection", again=not isinstance(error, ValueError)) from error


def is_file_name(name: str) -> bool:
    """Return whether a name, with a suffix added, is a valid file name on common file systems."""
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:  # a surrogate
        return False
    return 0 < length <= LONGEST_NAME and not set("/\\\0") & set(name) and name.strip(".") != ""


def _store(content: bytes, name: str, folder: Path, settings: DownloadSettings) -> None:
    """Write the content if it is an image; the suffix follows the image's format, not the URL."""
    if why_undecodable({"bytes": content, "path": name}) is not None:
        raise _DownloadError("not an image")
    with open_image(io.BytesIO(content)) as image:
        suffix = SUFFIXES.get(image.format or "")
        if suffix is None:
            raise _DownloadError("not an image")
        if min(image.size) < settings.min_side:
            raise _DownloadError("too small")
    with atomic_file(folder / f"{name}{suffix}", "wb") as file:
        file.write(content)


def _read_log(path: Path) -> dict[str, str]:
    """Read the outcomes of earlier calls; a truncated last line is ignored and completed."""
    require_safe_target(path)
    if not path.exists():
        return {}
    with open_plain(path) as file:
        lines = file.readlines()
    outcomes = {}
    if lines and not lines[-1].endswith(b"\n"):
        with open_for_writing(path, "a") as log:
            log.write("\n")
    for line in lines:
        try:
            entry = json.loads(line)
            outcomes[str(entry["name"])] = str(entry["outcome"])
        except (ValueError, KeyError, TypeError):
            continue
    return outcomes
