"""Serves the six routes of the Open Inference Protocol v2 (KServe, Triton).

    GET  /v2, /v2/health/live, /v2/health/ready
    GET  /v2/models/{model}[/versions/{version}][/ready]
    POST /v2/models/{model}[/versions/{version}]/infer

`requests.tensors` defines a model's inputs. The model version of this protocol is the fingerprint
of the model's spec, because that is what a client is written for. Every answer has the learned
state among its parameters (`version`, `age_ms_newest`, ...). A request can demand freshness with
the parameters `max_age_ms` and `min_version`, and a named snapshot with `snapshot`.

Binary extension: the header `Inference-Header-Content-Length` gives the length of the JSON at the
start of the body. The data of all inputs with a `binary_data_size` follow, in order. Outputs are
binary if the request asks for it: `binary_data` of an output, or `binary_data_output` of the
request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.routing import Route

from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.api.handler import EncodedAnswer, PredictionHandler
from headrace.serving.models.prediction import ScoredRequest, check_complete
from headrace.serving.models.registry import ModelRegistry, ServedModel
from headrace.serving.replicas.status import age
from headrace.serving.requests.candidates import ID, REQUEST_ID, CheckedRequest
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.refusals import JSON, as_response, encode
from headrace.serving.requests.request_decoder import shown
from headrace.serving.requests.splitting_key import key_of
from headrace.serving.requests.tensors import (
    BYTES,
    Input,
    candidates_of,
    inputs_of,
    raw_of,
    tensor_of,
)

if TYPE_CHECKING:
    from headrace.runtime.http.server import Readiness

HEADER_LENGTH = "Inference-Header-Content-Length"
SERVER = {"name": "headrace", "version": "1", "extensions": ["binary_tensor_data"]}
SCORE = "score"
_OUTPUTS = (SCORE, ID)
_DATATYPES = {SCORE: "FP64", ID: BYTES}


class Output(msgspec.Struct, frozen=True):
    """A requested output tensor."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct, frozen=True):
    """JSON of a request."""

    inputs: list[Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[Output] = []


_decode = msgspec.json.Decoder(InferRequest).decode


def error_of(refused: RequestRefused) -> Response:
    """Return the response to a refused request: this protocol has one string for errors."""
    field = f"{refused.refusal.field}: " if refused.refusal.field else ""
    text = f"{field}expected {refused.refusal.expected}, got {refused.refusal.found}"
    return as_response(refused, encode({"error": text}))


class _InferCandidates(CheckedRequest, frozen=True, eq=False):
    """A checked request with the requested outputs."""

    outputs: tuple[tuple[str, bool], ...] = ()
    """Name, and whether the answer is binary."""


class InferAdapter:
    """Reads and writes requests to `infer`."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits

    def read(self, served: ServedModel, body: bytes, headers: Mapping[str, str]) -> CheckedRequest:
        """Return what is asked. Raises RequestRefused (400)."""
        request, raw = _decoded(body, headers)
        tensors = [
            tensor_of(each, f"inputs[{i}]", data)
            for i, (each, data) in enumerate(_inputs(request, raw))
        ]
        candidates = candidates_of(served.spec.fields, tensors, self._limits.candidates)
        return _InferCandidates(
            candidates,
            request.id or None,
            None,
            _count(request.parameters, "max_age_ms"),
            _count(request.parameters, "min_version"),
            _text(request.parameters, "snapshot"),
            outputs=_outputs(request),
        )

    def key(self, name: str, body: bytes, headers: Mapping[str, str]) -> bytes | None:
        """Return the request's id, or the first item of the field's tensor."""
        try:
            request, raw = _decoded(body, headers)
            if name == REQUEST_ID:
                return key_of(request.id)
            for each, data in _inputs(request, raw):
                if each.name == name:
                    values = tensor_of(each, name, data).values[:1]
                    flat = values if isinstance(values, list) else values.tolist()
                    return key_of(flat[0]) if flat else None
        except RequestRefused:
            return None  # `read` refuses it with the reason
        return None

    def write(self, scored: ScoredRequest) -> EncodedAnswer:
        """Encode the scores as tensors."""
        asked, standing = scored.asked, scored.standing
        assert isinstance(asked, _InferCandidates)  # made by `read`
        ages = age(standing, scored.now_ms)
        answer: dict[str, object] = {
            "model_name": scored.target.alias or scored.target.served.spec.name,
            "model_version": scored.target.served.spec.fingerprint,
            "parameters": {
                name: value
                for name, value in (
                    ("model", scored.target.served.spec.name if scored.target.split else None),
                    ("version", standing.version),
                    ("state", standing.state(scored.now_ms)),
                    ("age_ms_newest", ages.newest),
                    ("age_ms_oldest", ages.oldest),
                    ("event_ms_newest", standing.newest_event_ms),
                    ("event_ms_oldest", standing.oldest_event_ms),
                    ("snapshot", standing.snapshot or None),
                    ("defaulted_rows", scored.defaulted or None),
                )
                if value is not None
            },
        }
        if asked.request_id is not None:
            answer["id"] = asked.request_id
        outputs, behind = [], []
        for name, binary in asked.outputs:
            values = scored.scores if name == SCORE else scored.names
            output: dict[str, object] = {
                "name": name,
                "datatype": _DATATYPES[name],
                "shape": [len(scored.scores)],
            }
            if binary:
                behind.append(raw_of(values))
                output["parameters"] = {"binary_data_size": len(behind[-1])}
            else:
                output["data"] = scored.scores.tolist() if name == SCORE else scored.names
            outputs.append(output)
        answer["outputs"] = outputs
        head = encode(answer)
        if not behind:
            return EncodedAnswer(head)
        headers = {HEADER_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        return EncodedAnswer(b"".join([head, *behind]), headers)

    def refuse(self, refused: RequestRefused) -> Response:
        """Return the response to a refused request; this protocol has 400 in place of 422."""
        if refused.status == 422:
            refused = RequestRefused(400, *_parts(refused))
        return error_of(refused)


def _decoded(body: bytes, headers: Mapping[str, str]) -> tuple[InferRequest, memoryview]:
    """Return the JSON of a request, and the bytes after it."""
    said = headers.get(HEADER_LENGTH)
    length = len(body) if said is None else _length(said, len(body))
    try:
        return _decode(memoryview(body)[:length]), memoryview(body)[length:]
    except msgspec.ValidationError as error:
        raise RequestRefused(400, "", "an inference request", str(error)) from error
    except UNDECODABLE as error:
        found = f"{length} bytes: {error}"
        raise RequestRefused(400, "", "a JSON object in UTF-8", found) from error


def _inputs(request: InferRequest, raw: memoryview) -> Iterator[tuple[Input, memoryview | None]]:
    """Yield each input with its binary data, if it has some."""
    for i, each in enumerate(request.inputs):
        size = each.parameters.get("binary_data_size")
        if size is None:
            yield each, None
            continue
        if type(size) is not int or not 0 <= size <= raw.nbytes:
            where = f"inputs[{i}].parameters.binary_data_size"
            raise RequestRefused(400, where, f"at most the {raw.nbytes} bytes left", shown(size))
        yield each, raw[:size]
        raw = raw[size:]
    if raw.nbytes:
        raise RequestRefused(400, "", "no bytes after the last tensor", f"{raw.nbytes}")


def _parts(refused: RequestRefused) -> tuple[str, str, str]:
    refusal = refused.refusal
    return refusal.field, refusal.expected, refusal.found


def _length(said: str, most: int) -> int:
    if not said.isdecimal() or not said.isascii() or len(said) > 12 or int(said) > most:
        raise RequestRefused(400, HEADER_LENGTH, f"at most the body's {most} bytes", said[:80])
    return int(said)


def _count(parameters: Mapping[str, Any], name: str) -> int | None:
    value = parameters.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise RequestRefused(400, f"parameters.{name}", "an integer of 0 or more", shown(value))
    return value


def _text(parameters: Mapping[str, Any], name: str) -> str | None:
    value = parameters.get(name)
    if value is not None and type(value) is not str:
        raise RequestRefused(400, f"parameters.{name}", "a string", shown(value))
    return value


def _outputs(request: InferRequest) -> tuple[tuple[str, bool], ...]:
    binary = request.parameters.get("binary_data_output") is True
    asked = request.outputs or [Output(name) for name in _OUTPUTS]
    made = []
    for i, each in enumerate(asked):
        if each.name not in _OUTPUTS:
            raise RequestRefused(
                400, f"outputs[{i}].name", f"one of {', '.join(_OUTPUTS)}", each.name
            )
        made.append((each.name, each.parameters.get("binary_data", binary) is True))
    return tuple(made)


def add_inference(
    app: FastAPI,
    models: ModelRegistry,
    answering: PredictionHandler,
    readiness: Readiness,
    limits: RequestLimits,
) -> None:
    """Add the six routes."""
    adapter = InferAdapter(limits)

    async def infer(request: Request) -> Response:
        try:
            name = _asked_name(models, request.path_params)
        except RequestRefused as refused:
            return error_of(refused)
        return await answering.answer(request, name, adapter)

    for path in ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"):
        app.router.routes.insert(0, Route(path, infer, methods=["POST"]))
    tags: list[str | Enum] = ["Open Inference Protocol"]

    @app.get("/v2", tags=tags, summary="Name and extensions of the server")
    async def server() -> Response:
        return Response(encode(SERVER), media_type=JSON)

    @app.get("/v2/health/live", tags=tags, summary="Whether the process is alive")
    async def live() -> Response:
        return Response(encode({"live": True}), media_type=JSON)

    @app.get("/v2/health/ready", tags=tags, summary="Whether every model is ready")
    async def ready() -> Response:
        complete = all(each.rows.standing.complete for each in models)
        answers = complete and not readiness.leaving
        return Response(encode({"ready": answers}), 200 if answers else 400, media_type=JSON)

    async def metadata(request: Request) -> Response:
        try:
            served = _check_version(models, request.path_params)
        except RequestRefused as refused:
            return error_of(refused)
        name = request.path_params["name"]
        said = {
            "name": name,
            "versions": _versions(models, name),
            "platform": f"headrace_{served.spec.architecture}",
            "inputs": _described(inputs_of(served.spec.fields)),
            "outputs": _described([(name, _DATATYPES[name], [-1]) for name in _OUTPUTS]),
        }
        return Response(encode(said), media_type=JSON)

    async def model_ready(request: Request) -> Response:
        name = request.path_params["name"]
        try:
            _check_ready(models, request.path_params)
        except RequestRefused as refused:
            return error_of(refused)
        return Response(encode({"name": name, "ready": True}), media_type=JSON)

    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        app.router.routes.append(Route(path, metadata, methods=["GET"]))
        app.router.routes.append(Route(f"{path}/ready", model_ready, methods=["GET"]))


def _described(tensors: Sequence[tuple[str, str, list[int]]]) -> list[dict[str, object]]:
    return [
        {"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in tensors
    ]


def _asked_name(models: ModelRegistry, path: Mapping[str, str]) -> str:
    """Return the model or alias of a path. Raises RequestRefused (404).

    A version of an alias that splits its requests is one of its models.
    """
    served, name = _check_version(models, path), path["name"]
    splits = models.find(name).split is not None
    return served.spec.name if splits and "version" in path else name


def _versions(models: ModelRegistry, name: str) -> list[str]:
    return [each.spec.fingerprint for each in models.arms(models.find(name))]


def _check_ready(models: ModelRegistry, path: Mapping[str, str]) -> None:
    """Refuse a path whose version, or one of whose models, is not here or not complete."""
    _check_version(models, path)
    for served in models.arms(models.find(path["name"])):
        check_complete(served.rows.standing)


def _check_version(models: ModelRegistry, path: Mapping[str, str]) -> ServedModel:
    """Return the model of a path. Raises RequestRefused (404)."""
    arms = models.arms(models.find(path["name"]))
    version = path.get("version")
    if version is None:
        return arms[0]
    for served in arms:
        if version == served.spec.fingerprint:
            return served
    known = " or ".join(each.spec.fingerprint for each in arms)
    raise RequestRefused(404, "version", known, version)
