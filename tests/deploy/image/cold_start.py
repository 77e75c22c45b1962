"""Measures the cold start of each part from the image: `python -m tests.deploy.image.cold_start`.

With `--deep`, from the image with torch, for a DeepFM; without it, for the model of the demo.

Each part starts in a container of its own, against a Kafka and a Valkey Cluster on this machine,
and ends before the next one starts. `cpu_s` is the processor time of all its processes until
`/health/ready` answers 200, `ready_s` the time on the clock, `memory_mb` the resident memory then.
The load of the machine changes the time on the clock more than the processor time.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil

from headrace.deploy.local.services.kafka import KafkaNode
from headrace.deploy.models.shipped import path_of
from tests.deploy.command import Running
from tests.deploy.image.build import DEEP, PLAIN, missing, size_mb
from tests.deploy.image.container import unpacked
from tests.deploy.image.parts import COMMANDS, PartsInContainers
from tests.running_server import jars, running_server
from tests.valkey_cluster import ValkeyCluster


def measured(folder: Path, image: str, model: str) -> dict[str, dict[str, float]]:
    """Return what each part took to become ready."""
    config = folder / "config"
    config.mkdir()
    shutil.copy(path_of(model), config / "model.toml")
    node = KafkaNode(folder / "kafka", jars(), remove=folder)
    cluster = ValkeyCluster(folder / "valkey", primaries=2, remove=folder)
    found = {}
    with running_server(node), running_server(cluster), unpacked(image, folder / "runc") as root:
        parts = PartsInContainers(root, config, node.bootstrap, cluster.url)
        parts.create()
        for name in COMMANDS:
            began_s = time.monotonic()
            with parts.ready(name) as part:
                ready_s = time.monotonic() - began_s
                found[name] = {**_spent(part.container), "ready_s": round(ready_s, 1)}
                part.container.stop()
    return found


def _spent(container: Running) -> dict[str, float]:
    """Return processor time and memory of the processes of a container."""
    processes = psutil.Process(container.process.pid).children(recursive=True)
    cpu_s = sum(sum(each.cpu_times()[:4]) for each in processes)  # ended children included
    memory = sum(each.memory_info().rss for each in processes)
    return {"cpu_s": round(cpu_s, 2), "memory_mb": round(memory / 1e6)}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--deep", action="store_true", help="the image with torch")
    given = parser.parse_args()
    image, model = (DEEP, "news_deepfm") if given.deep else (PLAIN, "demo")
    if reason := missing(image):
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        found = measured(Path(directory), image, model)
    if given.json:
        print(json.dumps({"image_mb": size_mb(image), "parts": found}))
        return 0
    for name, values in found.items():
        print(f"{name:12}", *(f"{key} {value}" for key, value in values.items()), sep="  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
