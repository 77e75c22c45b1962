"""The files of deploy/monitoring, and the queries in them."""

import json
from pathlib import Path

import headrace.deploy

MONITORING = Path(headrace.deploy.__file__).parent / "monitoring"


DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())


def queries() -> list[str]:
    """The queries of the dashboard's panels."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
