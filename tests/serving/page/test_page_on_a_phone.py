"""The page with experiments at the width of a phone, in a browser."""

import json
import re
from pathlib import Path

from headrace.serving import page
from tests.deploy.browser import document, needs_chromium
from tests.serving.page.static_site import site

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
    live = Path(page.__file__).with_name("page.html").read_text("utf-8")
    (tmp_path / "live.html").write_text(live, "utf-8")
    (tmp_path / "page").mkdir()
    answer = {"experiments": [{"name": "pace", "arms": [ARM]}], "promotions": []}
    (tmp_path / "page" / "experiments").write_text(json.dumps(answer))
    (tmp_path / "phone.html").write_text(PHONE.replace("PAGE", "live.html"))
    with site(tmp_path) as address:
        dom = document(f"{address}/phone.html")
    found = re.search(r'id="widest">(-?\d*)<', dom)
    assert found is not None
    assert found[1] == "0", "pixels that scroll sideways"
