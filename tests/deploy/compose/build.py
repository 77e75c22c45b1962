"""Builds what starts the Compose file here: `python -m tests.deploy.compose.build`.

These are the stand-ins for images of a registry, and Docker Compose from its Go module (8 minutes
on two cores, once), unless the Docker of this machine has Compose. It is kept below
`~/.cache/headrace` (`HEADRACE_COMPOSE_HOME`).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.compose import stand_ins
from tests.deploy.image.build import PLAIN, missing
from tests.go_command import run_go

_MODULE, _VERSION = "github.com/docker/compose/v2", "v2.40.3"


def compose_lacks() -> str:
    """Return why the Compose file cannot be started here, or ""."""
    if reason := engine_lacks():
        return reason
    if reason := missing(PLAIN):
        return reason
    if not stand_ins.built() or compose_command() is None:
        return "the stand-ins or Docker Compose are not built: `make image` builds them"
    return ""


def engine_lacks() -> str:
    """Return why Docker cannot be started here, or ""."""
    absent = [each for each in ("dockerd", "docker") if shutil.which(each) is None]
    return f"needs {' and '.join(absent)} (Debian: docker.io)" if absent else ""


def compose_command() -> list[str] | None:
    """Return the command of Docker Compose 2; None if it is missing."""
    if _built().exists():
        return [str(_built())]
    plugin = ["docker", "compose"]
    found = subprocess.run([*plugin, "version"], check=False, capture_output=True, text=True)
    return plugin if found.returncode == 0 and "Compose" in found.stdout else None


def _built() -> Path:
    home = Path(os.environ.get("HEADRACE_COMPOSE_HOME", Path.home() / ".cache" / "headrace"))
    return home / f"docker-compose-{_VERSION}"


def _build_compose() -> None:
    """Compile in the module's folder: `go install` refuses the directives of its go.mod."""
    if shutil.which("go") is None:
        raise RuntimeError("expected Docker Compose 2, or Go to build it; found neither on PATH")
    target = _built()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    module = json.loads(run_go(Path("/"), "mod", "download", "-json", f"{_MODULE}@{_VERSION}"))
    stamp = f"-s -w -X {_MODULE}/internal.Version={_VERSION}"
    options = ("-trimpath", "-ldflags", stamp, "-o", str(partial))
    run_go(Path(module["Dir"]), "build", *options, "./cmd", CGO_ENABLED="0")
    partial.rename(target)


def main() -> int:
    """Build what an engine here could start; return the exit status."""
    if reason := engine_lacks():
        print(f"Docker Compose and the stand-ins are not built: {reason}")
        return 0
    try:
        if not stand_ins.built():
            stand_ins.build()
        if compose_command() is None:
            _build_compose()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(*stand_ins.STAND_INS.values(), " ".join(compose_command() or []), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
