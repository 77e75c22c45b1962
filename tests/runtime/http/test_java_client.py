"""A producer on Java's HttpClient, which offers an upgrade to HTTP/2 with its defaults."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.http.server import Draining, Readiness, run_app

PROGRAM = """
import java.net.URI;
import java.net.http.*;

public class Post {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 0; i < 3; i++) {
            String body = "{\\"impression_id\\": \\"java-" + i + "\\"}";
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body)).build();
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.body());
        }
    }
}
"""


def _java() -> str | None:
    """Return a Java that compiles a single file and has the HTTP client, if there is one."""
    java = shutil.which("java")
    if java is None:
        return None
    listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)
    has = all(f"{module}@" in listed.stdout for module in ("java.net.http", "jdk.compiler"))
    return java if has else None


JAVA = _java()


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a server as collector and prediction servers run it."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()
    leaving = Draining(stop, Readiness(), lambda: False, drain_ms=0, finish_s=5)
    app: Any = echo
    thread = threading.Thread(target=run_app, args=(app, listener, leaving))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/impressions"
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(JAVA is None, reason="needs a JDK with java.net.http on the PATH")
def test_javas_http_client_posts_with_its_default_settings(url: str, tmp_path: Path) -> None:
    assert JAVA is not None
    source = tmp_path / "Post.java"
    source.write_text(PROGRAM)
    done = subprocess.run(
        [JAVA, str(source), url], capture_output=True, text=True, check=False, timeout=120
    )
    expected = [f'200 {{"impression_id": "java-{i}"}}' for i in range(3)]
    assert done.stdout.splitlines() == expected, done.stderr
