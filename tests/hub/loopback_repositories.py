"""The state of a loopback Hub: repositories, branches, commits and files, in memory."""

import hashlib
import itertools
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

FRONT_MATTER = re.compile(r"^\s*---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)
MOMENT = "2024-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class StoredFile:
    """Content of a file, and whether it is in large file storage."""

    content: bytes
    is_large: bool = False

    @property
    def blob(self) -> str:
        """Git's name of the content (of its pointer, for a large file)."""
        content = self.content
        if self.is_large:
            content = f"version https://git-lfs\noid sha256:{self.sha256}\nsize {len(content)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def sha256(self) -> str:
        """Hash of the content in large file storage."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def etag(self) -> str:
        """Hash that clients compare with a cached or local file."""
        return self.sha256 if self.is_large else self.blob

    def described(self, path: str, expand: bool) -> dict[str, Any]:
        """Return the entry of a listing."""
        entry: dict[str, Any] = {"type": "file", "oid": self.blob, "size": len(self.content), "path": path}
        if self.is_large:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": 100}
        if expand:
            entry["lastCommit"] = {"id": "0" * 40, "title": "", "date": MOMENT}
        return entry


@dataclass(frozen=True)
class Commit:
    """All files of a repository after a commit."""

    oid: str
    title: str
    files: dict[str, StoredFile]


@dataclass
class Repository:
    """Repository: branches (`main`, `refs/pr/1`, ...), each a list of commits with the newest last."""

    kind: str
    name: str
    private: bool = False
    branches: dict[str, list[Commit]] = field(default_factory=dict)
    counter: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """Every repository begins with an empty commit."""
        self.branches["main"] = [self._commit("initial commit", {})]

    def _commit(self, title: str, files: dict[str, StoredFile]) -> Commit:
        seed = f"{self.kind} {self.name} {next(self.counter)}"
        return Commit(hashlib.sha1(seed.encode()).hexdigest(), title, files)

    def at(self, revision: str) -> Commit | None:
        """Return the commit of a branch or hash."""
        if revision in self.branches:
            return self.branches[revision][-1]
        every = [commit for commits in self.branches.values() for commit in commits]
        return next((commit for commit in every if commit.oid == revision), None)

    def commit(self, branch: str, title: str, changes: dict[str, StoredFile | None]) -> Commit:
        """Add files, and remove those whose new content is None; a path that ends in `/` is a folder."""
        files = dict(self.branches[branch][-1].files)
        for path, stored in changes.items():
            if stored is not None:
                files[path] = stored
            else:
                files = {
                    name: old
                    for name, old in files.items()
                    if name != path and not (path.endswith("/") and name.startswith(path))
                }
        self.branches[branch].append(self._commit(title, files))
        return self.branches[branch][-1]

    def open_pull_request(self) -> str:
        """Create the branch of a new pull request."""
        number = 1 + sum(name.startswith("refs/pr/") for name in self.branches)
        self.branches[f"refs/pr/{number}"] = list(self.branches["main"])
        return f"refs/pr/{number}"

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Return contents by path, for tests."""
        commit = self.at(revision)
        assert commit is not None, revision
        return {path: stored.content for path, stored in commit.files.items()}

    def described(self, commit: Commit) -> dict[str, Any]:
        """Return the description of a repository; library and task are read from its card."""
        card = commit.files.get("README.md")
        found = FRONT_MATTER.match(card.content.decode()) if card else None
        try:
            metadata = (yaml.safe_load(found[1]) if found else None) or {}
        except yaml.YAMLError:
            metadata = {}
        return {
            "_id": self.name,
            "id": self.name,
            "modelId": self.name,
            "author": self.name.split("/")[0],
            "sha": commit.oid,
            "private": self.private,
            "gated": False,
            "disabled": False,
            "tags": list(metadata.get("tags", [])),
            "downloads": 0,
            "likes": 0,
            "lastModified": MOMENT,
            "createdAt": MOMENT,
            "pipeline_tag": metadata.get("pipeline_tag"),
            "library_name": metadata.get("library_name"),
            "cardData": metadata,
            "siblings": [
                {"rfilename": path, "size": len(stored.content), "blobId": stored.blob}
                for path, stored in commit.files.items()
            ],
        }

    def listing(self, commit: Commit, folder: str, recursive: bool, expand: bool) -> list[dict[str, Any]] | None:
        """Return the entries of a folder ("" is the root); None if the folder is missing."""
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        inside = {path: stored for path, stored in commit.files.items() if path.startswith(prefix)}
        if prefix and not inside:
            return None
        entries = {}
        for path, stored in sorted(inside.items()):
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts)):
                if depth == 1 or recursive:
                    name = prefix + "/".join(parts[:depth])
                    oid = hashlib.sha1(name.encode()).hexdigest()
                    entries[name] = {"type": "directory", "oid": oid, "size": 0, "path": name}
            if len(parts) == 1 or recursive:
                entries[path] = stored.described(path, expand)
        return list(entries.values())
