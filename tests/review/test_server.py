"""The review server answers its own page only, and changes nothing without being asked."""

import io

import pytest
from PIL import Image
from starlette.testclient import TestClient

from hf_captioners.cli import main
from hf_captioners.review.endpoints import MAX_BYTES
from hf_captioners.review.server import review_app, serve
from hf_captioners.review.table import ReviewTable

HOST, TOKEN = "127.0.0.1:8123", "secret-token"
ORIGIN = {"Origin": f"http://{HOST}"}
AGREED = {"captions": ["a dog"], "agreed": True}


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (2000, 1000), "red").save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("<img src=x onerror=alert(1)>\n")
    (tmp_path / "b.jpg").write_bytes(b"no image")
    return tmp_path


@pytest.fixture
def client(folder):
    return TestClient(review_app(ReviewTable(folder), HOST, TOKEN), base_url=f"http://{HOST}")


def test_the_page_is_served_with_the_token_and_loads_nothing_from_outside(client):
    for path, kind in (("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")):
        answer = client.get(f"/{TOKEN}/{path}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        assert "http://" not in answer.text and "https://" not in answer.text and "innerHTML" not in answer.text


@pytest.mark.parametrize("path", ["/", "/page.js", "/wrong/", "/secret-toke/", f"/{TOKEN}x/", "/folder", "/é/"])
def test_every_request_needs_the_token(client, path):
    assert client.get(path).status_code == 403
    assert client.post(path, json=AGREED, headers=ORIGIN).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:8123", "127.0.0.1:9999", ""])
def test_a_foreign_host_is_refused(client, host):
    assert client.get(f"/{TOKEN}/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1", f"https://{HOST}"])
def test_a_foreign_or_missing_origin_cannot_write(client, folder, origin):
    headers = {} if origin is None else {"Origin": origin}
    assert client.post(f"/{TOKEN}/captions/0", json=AGREED, headers=headers).status_code == 403
    assert not (folder / "metadata.jsonl").exists()


def test_the_first_write_is_asked_for(client, folder):
    answer = client.post(f"/{TOKEN}/captions/0", json={"captions": ["a dog"]}, headers=ORIGIN)
    assert answer.status_code == 409 and "metadata.jsonl" in answer.json()["ask"]
    assert not (folder / "metadata.jsonl").exists()
    assert client.post(f"/{TOKEN}/captions/0", json=AGREED, headers=ORIGIN).json() == {
        "kept": 1,
        "note": "Its text file is not a captioner's, and stays as it is.",
    }
    assert client.post(f"/{TOKEN}/captions/1", json={"captions": ["b"]}, headers=ORIGIN).json() == {"kept": 2}
    assert client.get(f"/{TOKEN}/folder").json()["kept"] == [0, 1]


def test_captions_are_sent_as_text(client):
    answer = client.get(f"/{TOKEN}/captions/0")
    assert answer.headers["content-type"] == "application/json"
    shown = {"name": "a.png", "captions": ["<img src=x onerror=alert(1)>"], "source": "text file", "shown": []}
    assert answer.json() == {**shown, "kept": False, "rejected": False, "draft": False, "assessed": [None]}


def test_images_are_sent_decoded_and_small_or_with_the_reason(client):
    answer = client.get(f"/{TOKEN}/images/0")
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == (1280, 640)
    answer = client.get(f"/{TOKEN}/images/1")
    assert answer.status_code == 422 and "b.jpg" in answer.json()["error"]


@pytest.mark.parametrize(
    "path", ["images/2", "captions/2", "images/99999999999999999999", "images/" + "9" * 5000, "images/²"]
)
def test_an_image_that_is_not_there_is_told(client, path):
    assert client.get(f"/{TOKEN}/{path}").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [("images/-1", 404), ("images/a.png", 404), ("images/../../a.png", 403), ("images/%2e%2e%2fa.png", 404)],
)
def test_no_path_comes_from_the_client(client, path, status):
    assert client.get(f"/{TOKEN}/{path}").status_code == status


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"agreed": true}', b'{"agreed": true, "captions": "a"}', b"[" * 100_000, b"\xff"]
)
def test_a_damaged_request_is_told_and_writes_nothing(client, folder, body):
    assert client.post(f"/{TOKEN}/captions/0", content=body, headers=ORIGIN).status_code == 400
    assert not (folder / "metadata.jsonl").exists()


def test_a_request_that_is_too_large_is_refused(client):
    answer = client.post(f"/{TOKEN}/captions/0", content=b" " * (MAX_BYTES + 1), headers=ORIGIN)
    assert answer.status_code == 413


def test_a_table_that_cannot_be_written_is_told(client, folder, monkeypatch):
    monkeypatch.setattr("hf_captioners.output_files.atomic_file", _full_disk)
    answer = client.post(f"/{TOKEN}/captions/0", json=AGREED, headers=ORIGIN)
    assert answer.status_code == 507 and "metadata.jsonl" in answer.json()["error"]


def test_captions_that_another_program_changed_are_asked_about(client, folder):
    client.post(f"/{TOKEN}/captions/0", json=AGREED | {"shown": []}, headers=ORIGIN)
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "captions": ["by an editor"]}\n')
    again = {"captions": ["a cat"], "shown": ["a dog"]}
    answer = client.post(f"/{TOKEN}/captions/0", json=again, headers=ORIGIN)
    assert answer.status_code == 409 and "by an editor. Replace them?" in answer.json()["ask"]
    assert "by an editor" in (folder / "metadata.jsonl").read_text()
    again["shown"] = answer.json()["changed"]
    assert client.post(f"/{TOKEN}/captions/0", json=again, headers=ORIGIN).status_code == 200
    assert "a cat" in (folder / "metadata.jsonl").read_text()


def test_a_second_page_of_a_folder_says_so_and_ends(folder, capsys):
    with ReviewTable(folder).only_writer():
        with pytest.raises(BlockingIOError, match=r"metadata\.jsonl\. It may be a page .* that is open: end it"):
            serve(ReviewTable(folder))
        assert main(["review", str(folder)]) == 2
    assert "Open http" not in capsys.readouterr().out


def _full_disk(*arguments, **options):
    raise OSError(28, "No space left on device")
