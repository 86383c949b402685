"""Parameters and forms of requests, errors as JSON, the description, the measurements and the page to try."""

import http.client
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiohttp import web

from hf_captioners import cli
from hf_captioners.server.description import STATUSES
from hf_captioners.server.metrics import Histogram
from hf_captioners.server.parameters import PARAMETERS, read_parameters
from tests.browser import look_at, open_browser

from .client import ask
from .conftest import port_of, served

ROOT = Path(__file__).parents[2]
BOUNDARY = "a-boundary"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
IMAGE = 'name="image"; filename="a.png"'


@pytest.fixture(scope="module")
def port(caption):
    with served(caption) as port:
        yield port


def form(*fields):
    """Return a form of pairs: what follows `form-data;`, and the content."""
    begin = f"--{BOUNDARY}\r\nContent-Disposition: form-data; ".encode()
    parts = [begin + head.encode() + b"\r\n\r\n" + content + b"\r\n" for head, content in fields]
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


def text_of(port, path):
    """Return an answer as text with its content type."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read().decode(), answer.headers["Content-Type"]
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("num_beams=3", {"num_beams": 3}),
        ("max_new_tokens=2", {"max_new_tokens": 2}),
        (
            "num_beams=2&num_return_sequences=2&length_penalty=0.5",
            {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.5},
        ),
        ("prompt=a%20red", {"prompt": "a red"}),
        ("do_sample=true&seed=7&temperature=2", {"do_sample": True, "seed": 7, "temperature": 2.0}),
    ],
)
def test_parameters_of_the_query_and_of_a_form_are_honoured(query, options, caption, contents, port):
    expected = caption.pipeline(contents[0], **(caption.generate | options), return_scores=True)
    texts = [record["generated_text"] for record in expected]
    fields = [(f'name="{name}"', str(value).lower().encode()) for name, value in options.items()]
    for status, answer, _ in (
        ask(port, contents[0], path=f"/caption?{query}"),
        ask(port, form(*fields, (IMAGE, contents[0])), FORM),
    ):
        assert status == 200, answer
        assert answer["caption"] == (texts if len(texts) > 1 else texts[0])


def test_requests_of_equal_parameters_share_batches(caption, contents, port):
    """Requests of other parameters do not, and a seed is that of one request."""
    queries = ["", "?num_beams=2", "?do_sample=true&seed=1"]
    alone = [ask(port, contents[0], path=f"/caption{query}")[1] for query in queries]
    caption.sizes.clear()
    with ThreadPoolExecutor(24) as clients:
        paths = [f"/caption{query}" for query in queries * 8]
        answers = list(clients.map(lambda path: ask(port, contents[0], path=path)[1], paths))
    assert [answer["caption"] for answer in answers] == [answer["caption"] for answer in alone * 8]
    assert sum(caption.sizes) == 24 and 1 < max(caption.sizes) <= 8


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("num_beems=1", "The parameter 'num_beems' is unknown. Did you mean `num_beams`? Known are prompt"),
        ("x=1", "The parameter 'x' is unknown. Known are prompt, instruction, num_beams"),
        ("num_beams=1&num_beams=2", "`num_beams` is given twice"),
        ("num_beams=many", "`num_beams` is 'many', expected a whole number from 1 to 16."),
        ("num_beams=100000", "`num_beams` is '100000', expected a whole number from 1 to 16."),
        ("temperature=nan", "`temperature` is 'nan', expected a number from 0.01 to 100."),
        ("do_sample=perhaps", "`do_sample` is 'perhaps', expected true or false."),
        ("prompt=" + "a" * 1001, "expected at most 1,000 letters"),
        ("num_return_sequences=2", "`num_return_sequences` is 2 with `num_beams=1`: give as many beams"),
        ("seed=1", "`seed` has no effect on a search: give `do_sample=true` too"),
        ("instruction=count", "without an instruction"),
    ],
)
def test_wrong_parameters_are_refused(query, said, contents, port):
    name, _, value = query.partition("&")[0].partition("=")
    status, answer, _ = ask(port, contents[0], path=f"/caption?{query}")
    assert status == 422 and said in answer["error"] and list(answer) == ["error"], answer
    if "&" not in query:
        fields = ((IMAGE, contents[0]), (f'name="{name}"', value.encode()))
        assert ask(port, form(*fields), FORM)[:2] == (422, answer)


def test_forms_that_cannot_be_read_are_refused(contents, port):
    image = (IMAGE, contents[0])
    for body, headers, status, said in (
        (form(), FORM, 400, "it has no field `image`; type for example: curl -F image=@photo.jpg"),
        (form(('name="imag"; filename="a.png"', contents[0])), FORM, 400, "the field 'imag' has a file"),
        (form(image, image), FORM, 400, "the field `image` twice"),
        (form(("x", b"1"), image), FORM, 400, "a field has no name"),
        (form(image, *[('name="prompt"', b"a")] * 65), FORM, 400, "more than 64 fields"),
        (form(image, ('name="prompt"', b"\xff")), FORM, 400, "decode"),
        (contents[0], FORM, 400, "The form cannot be read"),
        (contents[0], {"Content-Type": "multipart/form-data"}, 400, "boundary"),
        (form(image)[:200], FORM, 400, "The form cannot be read"),
        (form((IMAGE, b"no image")), FORM, 422, "cannot be read"),
        (form(image), FORM | {"Origin": "http://evil.example"}, 403, "of another origin"),
        (form(image), FORM | {"Origin": "null"}, 403, "of another origin"),
        (form(image), FORM | {"Origin": f"http://127.0.0.1:{port}"}, 200, None),
    ):
        found, answer, _ = ask(port, body, headers)
        assert found == status and (said is None or said in answer["error"]), answer


def test_large_forms_are_refused_before_they_are_held(contents, port):
    parts = (b"0" * 2**20 for _ in range(21))  # without Content-Length
    head = form((IMAGE, b"")).removesuffix(f"\r\n--{BOUNDARY}--\r\n".encode())
    status, answer, _ = ask(port, iter([head, *parts]), FORM)
    assert status == 413 and "20,971,520 bytes" in answer["error"]


def test_all_refusals_are_json(contents, port):
    for method, path, status, said in (
        ("GET", "/captions", 404, "There is no address '/captions'. Did you mean `/caption`?"),
        ("GET", "/%2e%2e/secret", 404, "There is no address"),
        ("GET", "/caption", 405, "/caption does not answer GET, expected POST."),
        ("DELETE", "/health", 405, "expected GET, HEAD."),
    ):
        found, answer, headers = ask(port, method=method, path=path)
        assert found == status and said in answer["error"], answer
        assert headers["Content-Type"].startswith("application/json")
        assert ("Allow" in headers) == (status == 405)


def test_a_request_that_fails_within_the_server_is_refused_as_json(caption, contents, caplog):
    with served(caption) as port:
        options, caption.generate = caption.generate, None
        try:
            status, answer, _ = ask(port, contents[0])
        finally:
            caption.generate = options
        assert (status, answer) == (500, {"error": "The server failed; its log has the reason."})
    assert "AttributeError" in caplog.text


def test_parameters_with_which_the_captioner_fails_are_named(caption, contents, caplog):
    with served(caption) as port:
        own = caption.pipeline.caption_prepared

        def fails(items, **options):
            if options["num_beams"] > 1:
                raise ValueError("too many")
            return own(items, **options)

        caption.pipeline.caption_prepared = fails
        try:
            status, answer, _ = ask(port, contents[0], path="/caption?num_beams=2")
            assert status == 422 and "failed with num_beams of the request" in answer["error"], answer
            assert ask(port, contents[0])[0] == 200
        finally:
            del caption.pipeline.caption_prepared


def test_the_description_has_what_the_server_answers(contents, port):
    status, described, _ = ask(port, method="GET", path="/openapi.json")
    assert status == 200 and described["openapi"].startswith("3.1.")
    assert re.fullmatch(r"Captioner: \S.*\.", described["info"]["description"])
    operation = described["paths"]["/caption"]["post"]
    names = [parameter["name"] for parameter in operation["parameters"]]
    assert names == [name for name in PARAMETERS if name != "instruction"]  # which this captioner does not read
    assert set(operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]) == {"image", *names}
    assert set(operation["responses"]) == {"200", *map(str, STATUSES)}
    answered = ask(port, contents[0])[1]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == set(answered) == set(schema["properties"])
    for path, methods in described["paths"].items():
        for method in methods:
            assert ask(port, method=method.upper(), path=path)[0] != 404 if path != "/metrics" else True
    beams = next(parameter for parameter in operation["parameters"] if parameter["name"] == "num_beams")
    assert beams["schema"] == {"type": "integer", "minimum": 1, "maximum": 16} and beams["in"] == "query"


SAMPLE = re.compile(
    r'(?P<name>[a-z_]+)(\{(?P<labels>[a-z]+="[^"\\\n]*"(,[a-z]+="[^"\\\n]*")*)\})? (?P<value>[0-9.e+-]+)'
)


def metrics_of(port):
    """Return the values of the measurements by their names with labels, after a check of the form."""
    text, kind = text_of(port, "/metrics")
    assert kind == "text/plain; version=0.0.4; charset=utf-8" and text.endswith("\n")
    values, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split()
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            family = re.sub("_(bucket|sum|count)$", "", found["name"])
            assert found["name"] in kinds or kinds[family] == "histogram", line
            values[line.rpartition(" ")[0]] = float(found["value"])
    return values


def test_measurements_have_the_form_of_prometheus(caption, contents):
    with served(caption) as port:
        for _ in range(3):
            assert ask(port, contents[0])[0] == 200
        ask(port, b"no image")
        ask(port, method="GET", path='/x"\n'.replace("\n", "%0a"))
        values = metrics_of(port)
    prefix = "hf_captioners_"
    assert values[prefix + 'responses_total{method="POST",path="/caption",status="200"}'] == 3
    assert values[prefix + 'responses_total{method="POST",path="/caption",status="422"}'] == 1
    assert values[prefix + 'responses_total{method="GET",path="other",status="404"}'] == 1
    assert values[prefix + "requests_in_flight"] == values[prefix + "images_waiting"] == 0
    assert values[prefix + "caption_seconds_count"] == values[prefix + "batch_images_sum"] == 3
    assert values[prefix + 'caption_seconds_bucket{le="+Inf"}'] == 3


def test_histograms_count_up_to_each_limit():
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 7):
        histogram.add(value)
    lines = ['x_bucket{le="1"} 2', 'x_bucket{le="2.5"} 3', 'x_bucket{le="+Inf"} 4', "x_sum 10.5", "x_count 4"]
    assert list(histogram.lines("x")) == lines


def test_every_parameter_reads_its_limits():
    for name, parameter in PARAMETERS.items():
        if parameter.kind in ("integer", "number"):
            for value in (parameter.low, parameter.high):
                assert read_parameters([(name, str(value))]) == {name: value}
            for value in (parameter.low - 1, parameter.high + 1):
                with pytest.raises(ValueError, match=re.escape(parameter.expected)):
                    read_parameters([(name, str(value))])


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_captions_an_image(width, contents, images, port):
    with open_browser(width) as browser:
        text = look_at(browser, f"http://127.0.0.1:{port}/")
        assert "Captioner: " in text and f"http://127.0.0.1:{port}/caption" in text

        def wait_for(name):
            deadline = time.monotonic() + 60
            while not (found := browser.find_element("id", name).text):
                assert time.monotonic() < deadline, browser.find_element("tag name", "body").text
                time.sleep(0.05)
            return found

        path = next(path for path in sorted(images.rglob("*.png")) if path.read_bytes() == contents[0])
        browser.find_element("id", "file").send_keys(str(path.resolve()))
        browser.find_element("tag name", "summary").click()
        browser.find_element("name", "max_new_tokens").send_keys("3")
        assert "max_new_tokens=3" in wait_for("command")
        browser.find_element("id", "send").click()
        assert wait_for("caption") == ask(port, contents[0], path="/caption?max_new_tokens=3")[1]["caption"]
        field = browser.find_element("name", "num_return_sequences")
        field.send_keys("2")
        browser.find_element("id", "send").click()
        assert "give as many beams" in wait_for("error")


@pytest.mark.parametrize("stop", ["SIGTERM", "SIGINT"])
def test_requests_in_flight_are_answered_at_the_end(stop, tmp_path):
    """With the default captioner on onnxruntime, which starts in a second."""
    pytest.importorskip("hf_captioners_default")
    photo = (ROOT / "docs" / "photo.jpg").read_bytes()
    typed = ["--port", "0", "--device", "cpu", "--batch_size", "1", "--generate", "min_new_tokens=20"]
    with open(tmp_path / "log.txt", "w") as log:
        server = subprocess.Popen([sys.executable, "-m", "hf_captioners.cli", "serve", *typed], stderr=log)
    try:
        port = port_of(server, tmp_path / "log.txt")
        with ThreadPoolExecutor(12) as clients:
            asked = [clients.submit(ask, port, photo) for _ in range(12)]
            answered = 0  # all others have arrived at the end: a connection that has not is refused
            while answered + ask(port, method="GET", path="/health")[1]["requests"] < 12:
                answered = sum(one.done() for one in asked)
                assert answered < 12, "the requests were too short"
            server.send_signal(getattr(signal, stop))
            answers = [one.result()[:2] for one in asked]
        assert [status for status, _ in answers] == [200] * 12, answers
        assert server.wait(60) == 0
        with pytest.raises(OSError):
            ask(port, method="GET", path="/health")
    finally:
        server.kill()
        server.wait()
    text = (tmp_path / "log.txt").read_text()
    left = re.search("The server ends; requests that are answered first: ([0-9]+)", text)
    assert left is not None and int(left[1]) > 0 and "Traceback" not in text, text


def test_the_start_names_the_captioner(captioner, capsys, monkeypatch):
    monkeypatch.setattr(web, "run_app", lambda application, **options: print("runs", file=sys.stderr))
    assert cli.main(["serve", captioner, "--device", "cpu", "--num_beams", "1"]) == 0
    text = capsys.readouterr().err
    assert f"Loading {captioner} with torch ..." in text and text.count(f"Captioner: {captioner} (") == 1
    assert "; runs on torch (cpu)." in text and text.index("Captioner") < text.index("runs\n")


LIGHT = """
import sys
sys.argv = ["hf-captioners", "serve", "--port", "0"]
from aiohttp import web
def started(application, **options):
    heavy = {"torch", "transformers", "datasets", "pyarrow", "huggingface_hub"} & set(sys.modules)
    print("imported", sorted(heavy))
web.run_app = started
from hf_captioners import cli
sys.exit(cli.main())
"""


def test_a_server_of_graphs_imports_neither_torch_nor_arrow():
    pytest.importorskip("hf_captioners_default")
    ran = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "imported []" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stderr.count("Captioner: ") == 1 and "runs on onnxruntime" in ran.stderr
