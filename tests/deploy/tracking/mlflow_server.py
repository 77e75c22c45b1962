"""A fake MLflow server: the REST endpoints that an export uses, with their state in memory."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_API = "/api/2.0/mlflow/"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"


class FakeMlflow:
    """The state of the server, and its address."""

    def __init__(self) -> None:
        self.url = ""
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.metrics: dict[str, list[dict[str, Any]]] = {}
        self.params: dict[str, dict[str, str]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.artifacts: dict[str, bytes] = {}
        self.batches: list[int] = []
        """Metrics of each request that had any."""
        self.status = 200
        """The status of all answers, if it is an error."""
        self.refused = threading.Event()
        self.lock = threading.Lock()

    def run(self, name: str) -> str:
        """Return the id of the run with this tag `headrace.id`."""
        [found] = [each for each, tags in self.tags.items() if tags["headrace.id"] == name]
        return found

    def answer(self, path: str, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body of a request."""
        with self.lock:
            if self.status != 200:
                self.refused.set()
                return self.status, {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "away"}
            handler = getattr(self, f"_{path.replace('/', '_').replace('-', '_')}", None)
            if handler is None:
                return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": path}
            done: tuple[int, dict[str, Any]] = handler(given)
            return done

    def _experiments_get_by_name(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = given["experiment_name"]
        if name not in self.experiments:
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": name}
        return 200, {"experiment": {"experiment_id": self.experiments[name], "name": name}}

    def _experiments_create(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        number = str(len(self.experiments) + 1)
        self.experiments[given["name"]] = number
        return 200, {"experiment_id": number}

    def _runs_search(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = re.fullmatch(r"tags\.`headrace\.id` = '(.*)'", given["filter"])
        assert found is not None, given
        return 200, {
            "runs": [
                self._shown(each)
                for each, tags in self.tags.items()
                if tags["headrace.id"] == found[1]
                and self.runs[each]["experiment_id"] in given["experiment_ids"]
            ]
        }

    def _runs_create(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = {
            "run_id": run_id,
            "run_name": given["run_name"],
            "experiment_id": given["experiment_id"],
            "status": "RUNNING",
            "start_time": given.get("start_time", 0),
            "artifact_uri": f"mlflow-artifacts:/{run_id}/artifacts",
        }
        self.tags[run_id] = {each["key"]: each["value"] for each in given.get("tags", [])}
        self.params[run_id], self.metrics[run_id] = {}, []
        return 200, {"run": self._shown(run_id)}

    def _runs_get(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"run": self._shown(given["run_id"])}

    def _runs_update(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        run = self.runs[given["run_id"]]
        run |= {key: given[key] for key in ("status", "end_time") if key in given}
        return 200, {"run_info": run}

    def _runs_log_batch(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        run_id = given["run_id"]
        for each in given.get("params", []):
            if self.params[run_id].setdefault(each["key"], each["value"]) != each["value"]:
                return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": each["key"]}
        metrics = given.get("metrics", [])
        if metrics:
            self.batches.append(len(metrics))
        self.metrics[run_id] += metrics
        self.tags[run_id] |= {each["key"]: each["value"] for each in given.get("tags", [])}
        return 200, {}

    def _shown(self, run_id: str) -> dict[str, Any]:
        tags = [{"key": key, "value": value} for key, value in self.tags[run_id].items()]
        return {"info": self.runs[run_id], "data": {"tags": tags}}


@contextmanager
def fake_mlflow() -> Iterator[FakeMlflow]:
    """Serve on a free port."""
    fake = FakeMlflow()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            """Answer a query."""
            query = parse_qs(urlsplit(self.path).query)
            self._answer({key: values[0] for key, values in query.items()})

        def do_POST(self) -> None:
            """Answer a call."""
            self._answer(json.loads(self._body()))

        def do_PUT(self) -> None:
            """Keep an artifact."""
            fake.artifacts[self.path.removeprefix(_ARTIFACTS)] = self._body()
            self._send(200, {})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content

        def _answer(self, given: dict[str, Any]) -> None:
            path = urlsplit(self.path).path.removeprefix(_API)
            self._send(*fake.answer(path, given))

        def _send(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
