"""Digests of the contents of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hf_captioners.output_files import open_plain


def content_hash(file: Path) -> str:
    """Return a hash of a file's contents."""
    with open_plain(file) as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
