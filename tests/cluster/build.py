"""Builds Kubernetes, containerd and Helm from their Go modules: `python -m tests.cluster.build`.

The first build downloads 1.5 GB of modules and takes 11 to 20 minutes on two cores. The result, 420
MB, is kept in folders that are named after the sources, by default below `~/.cache/headrace`
(`HEADRACE_CLUSTER_HOME`). Later builds of the same sources return at once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.go_command import run_go

_SOURCES = Path(__file__).parent / "programs"
_KWOK = "sigs.k8s.io/kwok"
_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
)
"""Stages of KWOK's nodes, and how its pods become ready. Its other stages for pods end every Job at
once and never end a preempted pod; `simulated_pods.yaml` replaces them."""
_VERSION = "1.36.3"
_KUBELET = "k8s.io/kubernetes/cmd/kubelet"
_CONTAINERD, _CONTAINERD_VERSION = "github.com/containerd/containerd/v2", "v2.4.2"
_CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
_HELM, _HELM_VERSION = "helm.sh/helm/v4/cmd/helm", "v4.3.1"


class Programs(NamedTuple):
    """The built programs."""

    control_plane: Path
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one."""
    kwok: Path
    stages: Path
    """KWOK's own stages that we use, in one YAML file."""
    kubelet: Path
    pause: Path
    """The program of the container that keeps a pod's network."""
    containerd: Path
    """With its shim and `ctr` beside it."""
    helm: Path


def built() -> Programs | None:
    """Return the programs, or None if they have not been built."""
    found = _programs_in(_home())
    return found if all(each.exists() for each in found) else None


def build(console: Console) -> Programs:
    """Build the programs, unless they exist.

    Raises RuntimeError if there is no Go, or with the end of the compiler's output.
    """
    if (found := built()) is not None:
        return found
    if shutil.which("go") is None:
        raise RuntimeError("expected Go 1.26 or later on PATH to build Kubernetes, found no `go`")
    home = _home()
    if not home.exists():
        with _new_folder(home) as partial:
            _download(console)
            _compile(console, partial)
            _install_containerd(console, partial)
            _copy_stages(partial)
    if not _helm_home().exists():
        with (
            _new_folder(_helm_home()) as partial,
            console.status(f"Compiling Helm {_HELM_VERSION}"),
        ):
            _install(partial, f"{_HELM}@{_HELM_VERSION}")
    return _programs_in(home)


@contextmanager
def _new_folder(home: Path) -> Iterator[Path]:
    """Give a folder that gets its name when the block ends well."""
    partial = home.with_name(f"{home.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(home)
    except FileExistsError:  # another process was first
        pass
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _cache() -> Path:
    fallback = Path.home() / ".cache" / "headrace"
    return Path(os.environ.get("HEADRACE_CLUSTER_HOME", fallback))


def _helm_home() -> Path:
    return _cache() / f"helm-{_HELM_VERSION}"


def _home() -> Path:
    sources = [_SOURCES / name for name in ("main.go", "pause/main.go", "go.mod", "go.sum")]
    parts = [*(each.read_bytes() for each in sources), _CONTAINERD_VERSION.encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
    return _cache() / f"kubernetes-{_VERSION}-{key}"


def _programs_in(home: Path) -> Programs:
    names = ("programs", "kwok", "stages.yaml", "kubelet", "pause", "containerd")
    paths = [*(home / name for name in names), _helm_home() / "helm"]
    return Programs(*paths)


def _download(console: Console) -> None:
    with console.status("Downloading the modules of Kubernetes, etcd and KWOK"):
        run_go(_SOURCES, "mod", "download")


def _compile(console: Console, into: Path) -> None:
    """Compile the programs of Kubernetes; the bar counts packages."""
    targets = (".", "./pause", f"{_KWOK}/cmd/kwok", _KUBELET)
    packages = len(run_go(_SOURCES, "list", "-deps", *targets).splitlines())
    package = "k8s.io/component-base/version"
    major, minor, _ = _VERSION.split(".")
    stamped = {"gitVersion": f"v{_VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = "-s -w " + " ".join(f"-X {package}.{key}={value}" for key, value in stamped.items())
    command = ["go", "build", "-v", "-trimpath", "-ldflags", flags, "-o", f"{into}/", *targets]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    columns = TextColumn("Compiling"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    lines = []
    with (
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        subprocess.Popen(
            command, cwd=_SOURCES, env=environment, stderr=subprocess.PIPE, text=True
        ) as compiler,
    ):
        task = progress.add_task("", total=packages)
        assert compiler.stderr is not None
        for line in compiler.stderr:
            lines.append(line)
            progress.advance(task)
    if compiler.returncode:
        raise RuntimeError(f"expected `go build` to succeed, got:\n{''.join(lines[-20:])}")
    (into / "cluster").rename(into / "programs")


def _install_containerd(console: Console, into: Path) -> None:
    """Compile containerd without the file systems that need C libraries."""
    packages = [f"{_CONTAINERD}/cmd/{name}@{_CONTAINERD_VERSION}" for name in _CONTAINERD_PROGRAMS]
    with console.status(f"Compiling containerd {_CONTAINERD_VERSION}"):
        _install(into, *packages, "-tags=no_btrfs no_zfs no_devmapper")


def _install(into: Path, *words: str) -> None:
    options = [each for each in words if each.startswith("-")]
    packages = [each for each in words if each not in options]
    flags = ("-trimpath", "-ldflags=-s -w", *options)
    run_go(_SOURCES, "install", *flags, *packages, GOBIN=str(into), CGO_ENABLED="0")


def _copy_stages(into: Path) -> None:
    module = Path(run_go(_SOURCES, "list", "-m", "-f", "{{.Dir}}", _KWOK).strip())
    texts = [(module / "kustomize" / "stage" / name).read_text() for name in _STAGES]
    (into / "stages.yaml").write_text("\n---\n".join(texts))


def main() -> int:
    """Build; return the exit status."""
    console = Console()
    try:
        programs = build(console)
    except RuntimeError as error:
        console.print(str(error), style="red", highlight=False)
        return 1
    console.print(f"Kubernetes {_VERSION} is in {programs.kwok.parent}", highlight=False)
    console.print(f"Helm {_HELM_VERSION} is in {programs.helm.parent}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
