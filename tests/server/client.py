"""Requests to the caption server."""

import http.client
import json

PNG = {"Content-Type": "image/png"}


def ask(port, body=b"", headers=PNG, method="POST", path="/caption"):
    """Send a request; return status, answer and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.headers)
    finally:
        connection.close()
