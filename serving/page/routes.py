"""Routes of the page: the page itself, Plotly, and the metrics that the page polls."""

import gzip
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from headrace.serving.page.experiment_reader import ExperimentReader
from headrace.serving.page.status_reader import StatusReader

_FOR_A_DAY = {"Cache-Control": "public, max-age=86400"}


@cache
def _page() -> str:
    return files("headrace.serving.page").joinpath("page.html").read_text("utf-8")


@cache
def _library() -> bytes:
    # located without an import, which would take tenths of a second from requests
    found = find_spec("plotly")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        raise FileNotFoundError("expected the package plotly, got none: install it")
    return Path(places[0], "package_data", "plotly.min.js").read_bytes()


@cache
def _packed_library() -> bytes:
    return gzip.compress(_library(), 6)


def page_routes(reader: StatusReader, experiments: ExperimentReader | None = None) -> APIRouter:
    """Return the routes, with the metrics of `reader`."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse(_page())

    @router.get("/page/plotly.js")
    def library(request: Request) -> Response:
        kind = "text/javascript"
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers = {**_FOR_A_DAY, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            return Response(_packed_library(), media_type=kind, headers=headers)
        return Response(_library(), media_type=kind, headers=_FOR_A_DAY)

    @router.get("/page/figures")
    def figures(since_ms: int = 0) -> Response:
        return Response(orjson.dumps(reader.answer(since_ms)), media_type="application/json")

    @router.get("/page/experiments")
    def shown_experiments() -> Response:
        found = {} if experiments is None else experiments.answer()
        return Response(orjson.dumps(found), media_type="application/json")

    return router
