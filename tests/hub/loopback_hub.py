"""A Hub on the loopback address of this machine, for tests of pushing and pulling.

It keeps models, data sets and Spaces in memory and answers what huggingface_hub asks: accounts, creating, uploading
(inline and through large file storage, without xet), commits, branches, pull requests, listings and downloads.

    def test_something(loopback_hub):
        subprocess.run([...], env=os.environ | loopback_hub.environment(tmp_path))
        assert "config.json" in loopback_hub.repository("tester/name").files()

Within the test's own process `loopback_hub.use_here(monkeypatch)` points huggingface_hub and transformers to it.
"""

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

from .card_rules import card_errors
from .loopback_repositories import FRONT_MATTER, MOMENT, Commit, Repository, StoredFile

USER, TOKEN, READ_TOKEN, OTHER_TOKEN = "tester", "hf_writes", "hf_reads", "hf_somebody_else"
# token -> (user, role)
ACCOUNTS = {TOKEN: (USER, "write"), READ_TOKEN: (USER, "read"), OTHER_TOKEN: ("somebody", "write")}
LARGE = re.compile(r".*\.(safetensors|parquet|arrow|bin|png|jpe?g|npz|gz|zip|tar)")
KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}


class Refusal(Exception):
    """Answer with a status other than 200."""

    def __init__(self, status: int, code: str, message: str = "", body: dict[str, Any] | None = None) -> None:
        self.status, self.code, self.message, self.body = status, code, message or code, body or {}


class LoopbackHub:
    """The server, and the state that tests inspect.

    Attributes:
        url: its address.
        requests: (method, path) of everything that was asked.
        before: called with (method, path) before a request is answered; what it raises becomes status 500.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.large_files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] | None = None
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Return environment variables for a process that uses this Hub and an empty cache.

        Args:
            home: folder of the cache.
            token: token of the account; None to be signed out.
        """
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_MODULES_CACHE": str(home / "modules"),
            "HF_DATASETS_CACHE": str(home / "datasets"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": token or "",
        }

    def use_here(self, monkeypatch: pytest.MonkeyPatch, home: Path, token: str | None = TOKEN) -> None:
        """Make this process use this Hub until the test ends; libraries have already read their variables."""
        import huggingface_hub.constants as constants

        for name, value in self.environment(home, token).items():
            monkeypatch.setenv(name, value)
        for name, value in {
            "ENDPOINT": self.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(home / "hub"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", self.url)

    def repository(self, name: str, kind: str = "model") -> Repository:
        """Return a repository that must exist."""
        return self.repositories[kind, name]


@pytest.fixture
def loopback_hub() -> Iterator[LoopbackHub]:
    """Provide a Hub without repositories."""
    with LoopbackHub() as hub:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    """Request handler; each route is a method that is chosen by the form of the path."""

    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    # (method, form of the raw path, name of the method that answers); {rev} is one escaped segment
    ROUTES = [
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create"),
        ("DELETE", r"/api/repos/delete", "delete"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("GET", r"/api/{kinds}", "repositories"),
        ("GET", r"/api/{kinds}/{id}(?:/revision/{rev})?", "info"),
        ("POST", r"/api/{kinds}/{id}/preupload/{rev}", "preupload"),
        ("POST", r"/api/{kinds}/{id}/commit/{rev}", "commit"),
        ("POST", r"/api/{kinds}/{id}/branch/{rev}", "branch"),
        ("GET", r"/api/{kinds}/{id}/tree/{rev}(?:/{path})?", "tree"),
        ("POST", r"/api/{kinds}/{id}/paths-info/{rev}", "paths_info"),
        ("GET", r"/api/{kinds}/{id}/refs", "refs"),
        ("GET", r"/api/{kinds}/{id}/commits/{rev}", "commits"),
        ("POST", r"/(?:{prefix}/)?{id}\.git/info/lfs/objects/batch", "large_batch"),
        ("PUT", r"/large-files/(?P<oid>\w+)", "large_upload"),
        ("POST", r"/large-files/(?P<oid>\w+)/verify", "large_verify"),
        ("GET", r"/(?:{prefix}/)?{id}/resolve/{rev}/{path}", "file"),
    ]
    PARTS = {
        "{kinds}": r"(?P<kinds>models|datasets|spaces)",
        "{prefix}": r"(?P<prefix>datasets|spaces)",
        "{id}": r"(?P<id>[\w.-]+/[\w.-]+?)",
        "{rev}": r"(?P<rev>[^/]+)",
        "{path}": r"(?P<path>.+)",
    }

    def answer(self) -> None:
        """Find the route and answer; a refusal becomes its status."""
        split = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(split.query).items()}
        self.body = self._read_body()
        method = "GET" if self.command == "HEAD" else self.command
        try:
            with self.hub.lock:
                self.hub.requests.append((self.command, split.path))
            if self.hub.before is not None:
                self.hub.before(self.command, split.path)
            for verb, form, name in self.ROUTES:
                for part, pattern in self.PARTS.items():
                    form = form.replace(part, pattern)
                found = re.fullmatch(form, split.path) if verb == method else None
                if found:
                    self.groups = {key: unquote(value) for key, value in found.groupdict().items() if value}
                    return self._answer_with(name)
            raise Refusal(404, "NotFound", f"no route for {method} {split.path}")
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            self._send(refusal.status, {"error": refusal.message, **refusal.body}, headers)
        except Exception as error:
            self._send(500, {"error": repr(error)}, {"X-Error-Message": repr(error)})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 (names that http.server calls)

    def _answer_with(self, name: str) -> None:
        with self.hub.lock:
            result = getattr(self, name)()
        if result is not None:
            self._send(200, result)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(payload))} | (headers or {})
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""

    # accounts and rights

    @property
    def account(self) -> tuple[str, str] | None:
        """Return (user, role) of the token of the request."""
        return ACCOUNTS.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))

    def may_write(self, owner: str) -> None:
        """Refuse clients that may not change repositories of this owner."""
        if self.account is None:
            raise Refusal(401, "Unauthorized", "Invalid credentials in Authorization header")
        user, role = self.account
        if role != "write" or owner != user:
            raise Refusal(403, "Forbidden", f"{user} has no right to write to {owner} with a {role} token")

    def find(self) -> tuple[Repository, Commit]:
        """Return the repository and commit that the path names."""
        kind = KINDS[self.groups.get("kinds") or self.groups.get("prefix") or "models"]
        repository = self.hub.repositories.get((kind, self.groups["id"]))
        if repository is None or (repository.private and self.account is None):
            raise Refusal(404 if self.account else 401, "RepoNotFound", "Repository not found")
        commit = repository.at(self.groups.get("rev", "main"))
        if commit is None:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {self.groups['rev']}")
        return repository, commit

    def find_to_write(self) -> tuple[Repository, Commit]:
        """Return the same, if the client may change it."""
        repository, commit = self.find()
        self.may_write(repository.name.split("/")[0])
        return repository, commit

    def address(self, kind: str) -> str:
        """Return the address of repositories of a type."""
        return self.hub.url if kind == "model" else f"{self.hub.url}/{kind}s"

    # routes

    def whoami(self) -> Any:
        """Return the account of the token."""
        if self.account is None:
            raise Refusal(401, "Unauthorized", "Invalid credentials in Authorization header")
        user, role = self.account
        return {"type": "user", "name": user, "orgs": [], "auth": {"accessToken": {"role": role}}}

    def create(self) -> Any:
        """Create a repository; 409 if it exists."""
        asked = json.loads(self.body)
        owner = asked.get("organization") or (self.account or ("",))[0]
        self.may_write(owner)
        kind, name = asked.get("type") or "model", f"{owner}/{asked['name']}"
        described = {"url": f"{self.address(kind)}/{name}", "name": name, "id": name}
        if (kind, name) in self.hub.repositories:
            raise Refusal(409, "Conflict", "You already created this repo", described)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repositories[kind, name] = Repository(kind, name, private)
        return described

    def delete(self) -> Any:
        """Remove a repository."""
        asked = json.loads(self.body)
        owner = asked.get("organization") or (self.account or ("",))[0]
        self.may_write(owner)
        if self.hub.repositories.pop((asked.get("type") or "model", f"{owner}/{asked['name']}"), None) is None:
            raise Refusal(404, "RepoNotFound")
        return {}

    def validate(self) -> Any:
        """Check the metadata of a card."""
        found = FRONT_MATTER.match(json.loads(self.body)["content"])
        try:
            metadata = yaml.safe_load(found[1]) if found else {}
        except yaml.YAMLError as error:
            raise Refusal(400, "BadRequest", body={"errors": [{"message": str(error)}], "warnings": []}) from error
        errors = card_errors(metadata) if isinstance(metadata, dict) else ["metadata is no mapping"]
        if errors:
            body = {"errors": [{"message": error} for error in errors], "warnings": []}
            raise Refusal(400, "BadRequest", body=body)
        return {"errors": [], "warnings": []}

    def repositories(self) -> Any:
        """Return all public repositories of a type."""
        kind = KINDS[self.groups["kinds"]]
        return [
            repository.described(repository.branches["main"][-1])
            for (stored_kind, _), repository in self.hub.repositories.items()
            if stored_kind == kind and not repository.private
        ]

    def info(self) -> Any:
        """Return one repository."""
        repository, commit = self.find()
        return repository.described(commit)

    def preupload(self) -> Any:
        """Return the upload mode of each file, and the hashes of existing ones."""
        if self.query.get("create_pr"):
            _, commit = self.find()
        else:
            _, commit = self.find_to_write()
        answers = []
        for file in json.loads(self.body)["files"]:
            stored = commit.files.get(file["path"])
            is_large = bool(LARGE.fullmatch(file["path"]))
            known = stored.etag if stored is not None and stored.is_large == is_large else None
            mode = "lfs" if is_large else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": known})
        return {"files": answers}

    def commit(self) -> Any:
        """Apply all changes of a commit, or none."""
        wants_review = bool(self.query.get("create_pr"))
        repository, current = self.find() if wants_review else self.find_to_write()
        if self.account is None:
            raise Refusal(401, "Unauthorized", "Invalid credentials in Authorization header")
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit", current.oid) != current.oid:
            raise Refusal(412, "PreconditionFailed", "A commit has happened since. Please refresh and try again.")
        changes: dict[str, StoredFile | None] = {}
        for line in lines:
            key, value = line["key"], line["value"]
            if key == "file":
                changes[value["path"]] = StoredFile(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if value["oid"] not in self.hub.large_files:
                    raise Refusal(400, "BadRequest", f"{value['path']} was never uploaded")
                changes[value["path"]] = StoredFile(self.hub.large_files[value["oid"]], is_large=True)
            elif key == "deletedFile":
                changes[value["path"]] = None
            elif key == "deletedFolder":
                changes[value["path"].rstrip("/") + "/"] = None
        branch = repository.open_pull_request() if wants_review else self.groups["rev"]
        if branch not in repository.branches:
            raise Refusal(400, "BadRequest", f"{branch} is no branch")
        commit = repository.commit(branch, header["summary"], changes)
        place = f"{self.address(repository.kind)}/{repository.name}"
        described = {"success": True, "commitOid": commit.oid, "commitUrl": f"{place}/commit/{commit.oid}"}
        if wants_review:
            described["pullRequestUrl"] = f"{place}/discussions/{branch.rsplit('/', 1)[1]}"
        return described

    def branch(self) -> Any:
        """Create a branch from `main` or `startingPoint`."""
        name = self.groups.pop("rev")
        repository, _ = self.find_to_write()
        if name in repository.branches:
            raise Refusal(409, "Conflict", f"Reference already exists: {name}")
        start = repository.at(json.loads(self.body or b"{}").get("startingPoint") or "main")
        if start is None:
            raise Refusal(404, "RevisionNotFound")
        repository.branches[name] = [start]
        return {}

    def tree(self) -> Any:
        """Return the entries of a folder."""
        repository, commit = self.find()
        flags = [self.query.get(name, "false").lower() in ("true", "1") for name in ("recursive", "expand")]
        listing = repository.listing(commit, self.groups.get("path", ""), *flags)
        if listing is None:
            raise Refusal(404, "EntryNotFound", f"{self.groups['path']} does not exist on {commit.oid}")
        return listing

    def paths_info(self) -> Any:
        """Return the entries of given paths; missing ones are left out."""
        repository, commit = self.find()
        asked = json.loads(self.body)
        paths = asked["paths"] if isinstance(asked["paths"], list) else [asked["paths"]]
        every = {
            entry["path"]: entry for entry in repository.listing(commit, "", True, bool(asked.get("expand"))) or []
        }
        return [every[path] for path in paths if path in every]

    def refs(self) -> Any:
        """Return the branches."""
        repository, _ = self.find()
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commits[-1].oid}
            for name, commits in repository.branches.items()
            if not name.startswith("refs/pr/")
        ]
        return {"branches": branches, "tags": [], "converts": []}

    def commits(self) -> Any:
        """Return the history of a branch, newest first."""
        repository, _ = self.find()
        return [
            {"id": commit.oid, "title": commit.title, "message": "", "authors": [], "date": MOMENT}
            for commit in reversed(repository.branches[self.groups["rev"]])
        ]

    def large_batch(self) -> Any:
        """Return upload addresses of large files; none if their content is known."""
        self.find()
        answers = []
        for file in json.loads(self.body)["objects"]:
            place = f"{self.hub.url}/large-files/{file['oid']}"
            actions = {"upload": {"href": place}, "verify": {"href": f"{place}/verify"}}
            known = file["oid"] in self.hub.large_files
            answers.append(file if known else {**file, "actions": actions})
        return {"transfer": "basic", "objects": answers}

    def large_upload(self) -> Any:
        """Store a large file."""
        self.hub.large_files[self.groups["oid"]] = self.body
        return {}

    def large_verify(self) -> Any:
        """Check the hash of an uploaded file."""
        if StoredFile(self.hub.large_files[self.groups["oid"]]).sha256 != self.groups["oid"]:
            raise Refusal(400, "BadRequest", "the content has a different hash")
        return {}

    def file(self) -> None:
        """Return the bytes of a file, or a range of them."""
        _, commit = self.find()
        stored = commit.files.get(self.groups["path"])
        headers = {"X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes"}
        if stored is None:
            error = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            return self._send(404, {"error": "Entry not found"}, headers | error)
        headers |= {"ETag": f'"{stored.etag}"', "Content-Type": "application/octet-stream"}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not found:
            return self._send(200, stored.content, headers)
        start, last = int(found[1]), min(int(found[2] or len(stored.content)), len(stored.content) - 1)
        headers["Content-Range"] = f"bytes {start}-{last}/{len(stored.content)}"
        self._send(206, stored.content[start : last + 1], headers)
