"""Compiles `formula.go` inside KEDA's published module: `python -m tests.cluster.keda.build`.

The first build downloads 2.6 GB of modules and takes ten minutes of processor time, because the
package with KEDA's formula imports the clients of all its triggers. The program, 96 MB, is kept
below `~/.cache/headrace` (`HEADRACE_CLUSTER_HOME`), in a folder that is named after the sources.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.go_command import run_go

_MODULE, VERSION = "github.com/kedacore/keda/v2", "v2.21.0"
_SOURCE = Path(__file__).with_name("formula.go")


def program() -> Path:
    """Return the path of the program, which exists once it is built."""
    key = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    fallback = Path.home() / ".cache" / "headrace"
    home = Path(os.environ.get("HEADRACE_CLUSTER_HOME", fallback))
    return home / f"keda-{VERSION}-{key}" / "formula"


def build() -> None:
    """Build the program, unless it exists.

    Raises RuntimeError if there is no Go, or with the end of the compiler's output.
    """
    if program().exists():
        return
    if shutil.which("go") is None:
        raise RuntimeError("expected Go 1.26 or later on PATH to build KEDA, found no `go`")
    module = json.loads(run_go(Path("/"), "mod", "download", "-json", f"{_MODULE}@{VERSION}"))
    with tempfile.TemporaryDirectory(prefix="headrace-keda-") as directory:
        # the folder of a module in Go's cache is read-only
        copy = shutil.copytree(module["Dir"], Path(directory) / "keda", copy_function=shutil.copy)
        for folder in (copy, copy / "cmd"):
            folder.chmod(0o755)
        (copy / "cmd/formula").mkdir()
        shutil.copy(_SOURCE, copy / "cmd/formula/main.go")
        partial = Path(directory) / "formula"
        options = ("-trimpath", "-ldflags=-s -w", f"-o={partial}")
        run_go(copy, "build", *options, "./cmd/formula", CGO_ENABLED="0")
        program().parent.mkdir(parents=True, exist_ok=True)
        shutil.move(partial, program())


def main() -> int:
    """Build; return the exit status."""
    try:
        build()
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"KEDA's formula is in {program()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
