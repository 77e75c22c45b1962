"""The table of fields on the page, in a browser."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from headrace.ingest.status import ProcessStatus
from headrace.serving import page
from headrace.serving.page.history import History
from tests.deploy.browser import document, needs_chromium
from tests.serving.page.static_site import site
from tests.serving.page.told_coverage import T0_MS, joiner, said, server


def drawn(folder: Path, statuses: Sequence[ProcessStatus]) -> list[list[tuple[str, str]]]:
    """Return the class and the text of each cell of the table, without its head."""
    history = History([])
    for status in statuses:
        history.take(status)
    history.step(T0_MS)
    live = Path(page.__file__).with_name("page.html").read_text("utf-8")
    (folder / "live.html").write_text(live, "utf-8")
    (folder / "page").mkdir()
    (folder / "page" / "figures").write_text(json.dumps(history.answer(0)))
    with site(folder) as address:
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
