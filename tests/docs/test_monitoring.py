"""deploy/monitoring is true: metrics exist, rules fire when they should, alerts have runbooks."""

import re
import shutil
import subprocess

import pytest
import yaml

from tests.docs.monitoring import DASHBOARD, MONITORING, queries
from tests.docs.pages import DOCS
from tests.docs.reference.metrics import page

RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RUNBOOK = (DOCS / "guides/monitoring.md").read_text()

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not installed"
)


def test_rules_and_dashboard_ask_only_for_metrics_that_exist() -> None:
    known = set(re.findall(r"^\| `(headrace_\w+)` \| (\w+)", page(), re.MULTILINE))
    names = {name for name, kind in known if kind != "histogram"}
    for name, kind in known:
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for query in queries() + [rule["expr"] for rule in RULES]:
        asked = set(re.findall(r"\bheadrace[\w:]+", re.sub(r'"[^"]*"', "", query)))
        assert asked or "up{job" in query, query
        assert asked <= names | recorded, query


def test_every_alert_has_a_paragraph_of_its_own_and_a_severity() -> None:
    told = dict(
        re.findall(r"^## (Headrace\w+)\n\n(.+?)(?=\n\n|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    )
    assert set(told) == {rule["alert"] for rule in ALERTS}
    for rule in ALERTS:
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket"), name
        assert rule["annotations"]["runbook"] == f"docs/guides/monitoring.md#{name.lower()}"
        assert rule["annotations"]["summary"], name
        assert len(told[name]) > 100, name


def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    stories = yaml.safe_load((MONITORING / "rules_test.yml").read_text())["tests"]
    names = [story["name"] for story in stories]
    assert sorted(names) == sorted(
        f"{rule['alert']} {what}" for rule in ALERTS for what in ("fires", "keeps quiet")
    )


@needs_promtool
@pytest.mark.parametrize(
    "words", [("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")]
)
def test_promtool_agrees(words: tuple[str, ...]) -> None:
    said = subprocess.run(
        ["promtool", *words],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_panel_has_a_title_a_unit_and_a_legend() -> None:
    charts = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["title"] for panel in charts}) == len(charts)
    for panel in charts:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
