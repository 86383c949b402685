"""`hf-captioners cache`: list or clear the feature cache that training runs share."""

import argparse

from .paths import check_path

NAME = "cache"
HELP = "list the image features that all trainings share, and empty them"
EXAMPLES = """examples:
  hf-captioners cache
  hf-captioners cache --empty"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of folder and clearing."""
    parser.add_argument("--empty", action="store_true", help="remove all features that no process uses now")
    parser.add_argument(
        "--feature_cache_dir",
        metavar="DIR",
        help="another folder of features, as `train` has it; default: the shared one",
    )


def run(args: argparse.Namespace) -> int:
    """Print one line per vision model and the total size, or delete the cache."""
    from hf_captioners.features.shared_cache import SharedCache, days_since

    check_path("feature_cache_dir", args.feature_cache_dir, folder=True)
    cache = SharedCache(args.feature_cache_dir)
    if args.empty:
        removed, in_use = cache.empty()
        kept = f" {in_use:,} of them in use were kept: repeat it when those runs have ended." if in_use else ""
        print(f"Removed {size_in_words(removed)} of features from {cache.folder}.{kept}")
        return 0
    stores = cache.stores()
    for store in stores:
        use = "in use" if store.in_use else f"last used {days_since(store.last_use)}"
        size = f"{size_in_words(store.size):>9}  {store.images:>9,} images"
        print(f"{size}  {use}  {store.extractor} ({store.folder.name})")
    total = sum(store.size for store in stores)
    print(f"{size_in_words(total):>9}  in {cache.folder}")
    if args.feature_cache_dir is None:
        print("Trainings keep it below 10 GB (--feature_cache_gb). Empty it: hf-captioners cache --empty")
    return 0


def size_in_words(size: int) -> str:
    """Return a number of bytes as text with a unit."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
