"""Writes the rendered examples of the chart to `golden/`: `python -m tests.deploy.chart.golden`.

A change of a template shows in the diff of these files.
"""

from __future__ import annotations

import yaml

from tests.deploy.chart.helm import HERE, example, render

EXAMPLES = ("small", "large")


def rendered(name: str) -> str:
    """Return all objects of an example as YAML, without the text of the alert rules."""
    objects = render(example(name))
    for each in objects:
        if each["kind"] == "PrometheusRule":
            each["spec"] = "deploy/monitoring/rules.yml"
    return yaml.safe_dump_all(objects, sort_keys=False, width=120)


if __name__ == "__main__":
    for each in EXAMPLES:
        (HERE / f"golden/{each}.yaml").write_text(rendered(each))
