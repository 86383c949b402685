"""Cache of feature stores that all runs of a user share: folder, size limit, list and removal of stores.

    HF_HOME/hf_captioners/features/EXTRACTOR-DTYPE/   a feature store, see `feature_store`
                                   .use-*.lock        in it: a process that reads or fills the store holds it

Where the stores are larger than the limit, the shards that no run has used for longest are removed, before a run adds
others. Shards of a store that another process uses are never removed. The system frees the locks of a process that is
killed. The time of a shard is that of its last use.
"""

import json
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import BaseFileLock, Timeout
from huggingface_hub import constants
from safetensors import SafetensorError, safe_open

from hf_captioners.output_files import lock_of, require_safe_target

STORE_FILE, SHARDS, USES = "store.json", "regions-*.safetensors", ".use-*.lock"
GIGABYTE = 10**9


def default_folder() -> Path:
    """Return the folder of the cache, `$HF_HOME/hf_captioners/features`."""
    return Path(constants.HF_HOME, "hf_captioners", "features")


@dataclass(frozen=True)
class CachedStore:
    """Facts about a feature store in the cache: folder, images, size and last use.

    Attributes:
        folder: its folder.
        extractor: name of the vision model, with layer and grid.
        images: number of images.
        size: bytes of its shards.
        last_use: seconds since 1970.
        in_use: whether a process uses it.
    """

    folder: Path
    extractor: str
    images: int
    size: int
    last_use: float
    in_use: bool


class SharedCache:
    """Cache of feature stores in a folder that several processes use at once.

    Args:
        folder: the folder; made when it is used.
        limit: bytes of all stores.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int = 10 * GIGABYTE) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self.limit = limit

    def use(self, store: Path) -> BaseFileLock:
        """Lock a store against removal by others until the lock is released or the process ends.

        Args:
            store: folder of the store; made if missing.

        Raises:
            OSError: the folder cannot be made.
        """
        store.mkdir(parents=True, exist_ok=True)
        with self._locked():
            store.mkdir(parents=True, exist_ok=True)  # emptied meanwhile
            lock = lock_of(store / f".use-{os.getpid()}-{secrets.token_hex(4)}.lock", inside=self.folder)
            lock.acquire()
        return lock

    def touch(self, shards: Collection[Path]) -> None:
        """Record that shards are in use now."""
        for shard in shards:
            with suppress(OSError):  # of another user, or gone
                os.utime(shard)

    def make_room(self, size: int, keep: Collection[Path] = (), lock: BaseFileLock | None = None) -> int:
        """Remove the least recently used shards until this number of bytes fits within the limit.

        Args:
            size: bytes that will be added.
            keep: shards that stay.
            own: the lock of the caller's own store, see `use`.

        Returns:
            The number of bytes that were removed. They may be too few, if other processes use the rest.
        """
        with self._locked():
            shards = sorted(
                (shard.stat().st_mtime_ns, shard) for store in self._stores() for shard in store.glob(SHARDS)
            )
            total, removed = sum(shard.stat().st_size for _, shard in shards) + size, 0
            used = {store for store in self._stores() if self._is_used(store, lock)}
            for _, shard in shards:
                if total - removed <= self.limit:
                    break
                if shard not in keep and shard.parent not in used:
                    removed += _removed(shard)
            for store in self._stores():
                if store not in used and not any(store.glob(SHARDS)) and (lock is None or store != _store_of(lock)):
                    shutil.rmtree(store, ignore_errors=True)
        return removed

    def stores(self) -> list[CachedStore]:
        """Return the stores of the cache, last used first."""
        if not self.folder.is_dir():
            return []
        with self._locked():
            stores = [self._described(store) for store in self._stores()]
        return sorted(stores, key=lambda store: -store.last_use)

    def empty(self) -> tuple[int, int]:
        """Remove all stores that no process uses.

        Returns:
            Bytes that were removed, and the number of stores that are in use.
        """
        if not self.folder.is_dir():
            return 0, 0
        removed = in_use = 0
        with self._locked():
            for store in self._stores():
                if self._is_used(store):
                    in_use += 1
                    continue
                removed += sum(map(_removed, store.glob(SHARDS)))
                shutil.rmtree(store, ignore_errors=True)
        return removed, in_use

    def _locked(self) -> BaseFileLock:
        self.folder.mkdir(parents=True, exist_ok=True)
        return lock_of(self.folder / ".cache.lock", patience=-1)

    def _stores(self) -> Iterator[Path]:
        for store in sorted(self.folder.iterdir()):
            if not store.is_symlink() and (store / STORE_FILE).is_file():
                yield store

    def _is_used(self, store: Path, own_lock: BaseFileLock | None = None) -> bool:
        """Return True if another process uses a store; remove locks of processes that ended."""
        is_used = False
        for path in store.glob(USES):
            if own_lock is not None and path == Path(own_lock.lock_file):
                continue
            require_safe_target(path)
            lock = lock_of(path, patience=0)
            try:
                with lock:
                    path.unlink(missing_ok=True)
            except (Timeout, PermissionError):  # Windows removes no open file
                is_used = True
        return is_used

    def _described(self, store: Path) -> CachedStore:
        shards = list(store.glob(SHARDS))
        extractor = "damaged"
        with suppress(OSError, ValueError, KeyError, TypeError):
            extractor = str(json.loads((store / STORE_FILE).read_text(encoding="utf-8"))["extractor"])
        states = [shard.stat() for shard in shards]
        last = max((state.st_mtime for state in states), default=store.stat().st_mtime)
        size = sum(state.st_size for state in states)
        return CachedStore(store, extractor, sum(map(_images_in, shards)), size, last, self._is_used(store))


def _store_of(lock: BaseFileLock) -> Path:
    return Path(lock.lock_file).parent


def _removed(shard: Path) -> int:
    """Remove a shard and return its size in bytes; 0 if it cannot be removed."""
    with suppress(OSError):
        size = shard.stat().st_size
        shard.unlink()
        return size
    return 0


def _images_in(shard: Path) -> int:
    """Return the number of images in a shard, from its header; 0 if it is damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, SafetensorError), safe_open(shard, "np") as file:
        return len(json.loads(file.metadata()["ids"]))
    return 0


def days_since(seconds: float) -> str:
    """Return how many days ago a time was, as text such as `3 days ago`."""
    days = (time.time() - seconds) / 86400
    return "today" if days < 1 else f"{days:.0f} day{'' if round(days) == 1 else 's'} ago"
