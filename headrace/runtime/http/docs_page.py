"""The page at `/docs`: an OpenAPI document as plain HTML.

FastAPI's page loads Swagger UI from a public CDN. Such a script would run in the origin of the
admin routes, and a machine without a network would show an empty page. This page has no script and
loads nothing, and its headers forbid the browser to do either. It shows each route with its
examples as a curl command. *Refused:* Swagger UI as a package of assets, a megabyte of script for
some ten routes.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STYLE = """\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 13px/1.5 ui-monospace, monospace }
pre { overflow-x: auto; padding: .7rem; border: 1px solid #8884; border-radius: 4px }
section { border-top: 1px solid #8884; margin-top: 1.5rem }
h2 { font-size: 1rem } h2 code { font-size: 1rem }
td, th { text-align: left; vertical-align: top; padding: 0 1rem 0 0 }
"""


def add_docs(app: FastAPI, describe: Callable[[], Mapping[str, Any]]) -> None:
    """Add the route `/docs`. The app needs `docs_url=None`; `describe` returns its document."""

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(describe()), headers=_HEADERS)


def docs_page(document: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        '<p>The whole document: <a href="openapi.json">openapi.json</a></p>',
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method.upper(), operation)
    return "\n".join(parts)


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section><h2><code>{method} {escape(path)}</code></h2>"
    yield f"<p>{escape(operation.get('summary', ''))}</p>"
    if "description" in operation:
        yield f"<pre>{escape(operation['description'])}</pre>"
    given = operation.get("parameters", ())
    if given:
        rows = (
            f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['in'])}"
            f"<td>{escape(each.get('description', ''))}"
            for each in given
        )
        yield f"<table><tr><th>parameter<th>in<th>{''.join(rows)}</table>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        for name, example in content.get("examples", {}).items():
            yield f"<p>{escape(example.get('summary', name))}:</p>"
            yield f"<pre>{escape(_curl(path, method, kind, operation, example['value']))}</pre>"
    rows = (
        f"<tr><td>{escape(status)}<td>{escape(answer.get('description', ''))}"
        for status, answer in operation["responses"].items()
    )
    yield f"<table><tr><th>status<th>{''.join(rows)}</table></section>"


def _curl(path: str, method: str, kind: str, operation: Mapping[str, Any], value: Any) -> str:
    body = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    lines = [f'curl -X {method} "$URL{path}"']
    if operation.get("security"):
        lines.append('-H "Authorization: Bearer $TOKEN"')
    lines += [f"-H 'Content-Type: {kind}'", f"--data-binary {shlex.quote(body)}"]
    return " \\\n  ".join(lines)
