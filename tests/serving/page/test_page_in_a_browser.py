"""The page in a browser: its tables, the explanation of a score, and the width of a phone."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn

from headrace.ingest.status import ProcessStatus
from headrace.serving import page
from headrace.serving.page.history import History
from headrace.serving.page.routes import page_routes
from tests.deploy.browser import document, needs_chromium
from tests.serving.api.app_client import complete
from tests.serving.page.told_coverage import T0_MS, joiner, said, server
from tests.serving.served_models import Serving, deltas_of_article, eventually


@contextmanager
def site(folder: Path, answers: Mapping[str, object]) -> Iterator[str]:
    """The address of the page in a folder, whose routes answer with these objects."""
    live = Path(page.__file__).with_name("page.html").read_text("utf-8")
    (folder / "live.html").write_text(live, "utf-8")
    (folder / "page").mkdir()
    for name, answer in answers.items():
        (folder / "page" / name).write_text(json.dumps(answer))
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        listening.server_close()


def drawn(folder: Path, statuses: Sequence[ProcessStatus]) -> list[list[tuple[str, str]]]:
    """Return the class and the text of each cell of the table, without its head."""
    history = History([])
    for status in statuses:
        history.take(status)
    history.step(T0_MS)
    with site(folder, {"figures": history.answer(0)}) as address:
        dom = document(f"{address}/live.html")
    [table] = re.findall(r'<div id="coverage">(.*?)</div>', dom, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cell = re.compile(r'<td class="(.*?)".*?>(.*?)</td>')
    return [
        [(mark.removeprefix("n").strip(), text.replace("&nbsp;", " ")) for mark, text in found]
        for row in rows
        if (found := cell.findall(row))
    ]


@needs_chromium
def test_the_page_marks_the_fields_that_one_side_lacks(tmp_path: Path) -> None:
    asked = {"user": 10.0, "article": 0.0, "site": 5.0, "unknown<b>": 4.0}
    statuses = [
        joiner("a", 100, user=100, article=90, site=0),
        said("server", "a", "news", ("candidates", 10), asked),
    ]
    assert drawn(tmp_path, statuses) == [
        [("", "user"), ("", "100.0 %"), ("", "100.0 %"), ("bad", "")],
        [
            ("", "article (article_id)"),
            *(("", "90.0 %"), ("bad", "0.0 %"), ("bad", "missing in requests")),
        ],
        [("", "site"), ("bad", "0.0 %"), ("", "50.0 %"), ("bad", "missing in events")],
        [("", "unknown&lt;b&gt;"), ("", "\u2013"), ("bad", "40.0 %"), ("bad", "not in the spec")],
    ]


@needs_chromium
def test_the_page_names_the_model_of_each_field_if_there_are_several(tmp_path: Path) -> None:
    statuses = [joiner("a", 4, user=4), server("b", 4, model="other", user=4)]
    names = [row[0][1] for row in drawn(tmp_path, statuses)]
    assert names == ["news / user", "other / user"]


WIDTH = 390
REASON = "confidence sequence from -0.0123456 to +0.0123456, which excludes a better arm"
ARM = {
    "name": "arm11",
    "state": "eliminated",
    "better": True,
    "examples": 1_234_567,
    "difference": -0.012,
    "low": -0.02,
    "high": -0.001,
    "reason": REASON,
    "curve": [],
}
# Chromium's own windows are at least 500 px wide, so the page is in a frame
PHONE = f"""<!doctype html><iframe src="PAGE" style="width:{WIDTH}px;height:844px"></iframe>
<b id="widest"></b><script>
setInterval(() => {{
  const inner = document.querySelector("iframe").contentDocument;
  const rows = inner.querySelectorAll("td[data-head=reason]");
  const wide = [inner.documentElement, ...inner.querySelectorAll(".table, .wide")];
  const over = wide.map(each => each.scrollWidth - each.clientWidth);
  if (rows.length) document.getElementById("widest").textContent = Math.max(...over);
}}, 200);
</script>"""


@needs_chromium
def test_a_phone_shows_the_reasons_of_arms_without_scrolling_sideways(tmp_path: Path) -> None:
    answer = {"experiments": [{"name": "pace", "arms": [ARM]}], "promotions": []}
    (tmp_path / "phone.html").write_text(PHONE.replace("PAGE", "live.html"))
    with site(tmp_path, {"experiments": answer}) as address:
        dom = document(f"{address}/phone.html")
    found = re.search(r'id="widest">(-?\d*)<', dom)
    assert found is not None
    assert found[1] == "0", "pixels that scroll sideways"


class _NoFigures:
    def answer(self, since_ms: int) -> dict[str, Any]:
        nothing: dict[str, list[Any]] = {
            "times": [],
            "curves": [],
            "processes": [],
            "partitions": [],
            "accuracy": [],
        }
        return {**nothing, "now_ms": since_ms, "shards": {}, "dead_letters": {}}


@contextmanager
def _listening(serving: Serving) -> Iterator[str]:
    app = serving.app
    app.include_router(page_routes(_NoFigures()))  # type: ignore[arg-type]
    listening = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = Thread(target=listening.run)
    thread.start()
    try:
        eventually(lambda: listening.started)
        [address] = listening.servers[0].sockets
        yield f"http://127.0.0.1:{address.getsockname()[1]}/"
    finally:
        listening.should_exit = True
        thread.join(60)


@needs_chromium
def test_the_page_shows_the_parts_of_the_first_candidates_score() -> None:
    serving, pusher = complete()
    pusher.push(deltas_of_article(serving.spec, "article_id-1", -3.0))
    serving.follow()
    with _listening(serving) as url:
        dom = document(url + "#explain")
    assert "exact: the parts sum to the log-odds" in dom
    shown = dict(re.findall(r'<td>([\w-]+)</td><td class="n">([^<]+)</td>', dom))
    numbers = {name: float(text.replace("\u2212", "-")) for name, text in shown.items()}
    whole = numbers.pop("log-odds")
    assert numbers["article"] > 0
    assert abs(sum(numbers.values()) - whole) < 0.001 * len(numbers)
