"""Builds the container image with buildah: `python -m tests.deploy.image.build`.

buildah needs no daemon, but root. Without a registry, the base image is a Debian that mmdebstrap
installs: it has Python, certificates, and no documentation. Images and cached layers, 3 GB, are
kept below `~/.cache/headrace/image` (`HEADRACE_IMAGE_HOME`). `HEADRACE_IMAGE_BASE` names another
base image, such as docker.io/library/python:3.13-slim.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PLAIN = "localhost/headrace:plain"
DEEP = "localhost/headrace:deep"
_BASE = "localhost/headrace-base:bookworm"
_UNREAD = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_MERGED = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
"""Makes /bin a link from the start. Otherwise a script does it later, which needs 50 MB of perl."""
_PROGRAMS = ("buildah", "runc")


def missing(image: str) -> str:
    """Return why the image cannot run here, or "" if it can."""
    absent = [each for each in _PROGRAMS if shutil.which(each) is None]
    if absent:
        return f"needs {' and '.join(absent)}"
    if os.geteuid() != 0:
        return "needs root: buildah mounts the image"
    if not _exists(image):
        return "the image is not built: `make image` builds it"
    return ""


def buildah(*arguments: str) -> str:
    """Run buildah on the images of this folder; return its output."""
    done = subprocess.run(
        _command(*arguments), cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode:
        message = f"expected `buildah {arguments[0]}` to succeed, got:\n{done.stderr[-2000:]}"
        raise RuntimeError(message)
    return done.stdout.strip()


def inspected(image: str) -> dict[str, Any]:
    """Return what buildah says about the image."""
    answer: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", image))
    return answer


def size_mb(image: str) -> float:
    """Return the size of the files of all layers, in MB."""
    listed: list[dict[str, str]] = json.loads(buildah("images", "--json", image))
    value, unit = listed[0]["size"].split()
    return float(value) * {"KB": 0.001, "MB": 1.0, "GB": 1000.0}[unit.upper()]


def build(image: str, target: str) -> None:
    """Build a target of the Containerfile; raises RuntimeError if a step fails."""
    base = os.environ.get("HEADRACE_IMAGE_BASE") or bootstrapped()
    bundle = os.environ.get("SSL_CERT_FILE")  # of a proxy in front of the package index
    secret = ("--secret", f"id=ca,src={bundle}") if bundle else ()
    index = os.environ.get("HEADRACE_TORCH_INDEX")
    torch = ("--build-arg", f"TORCH_INDEX={index}") if index else ()
    command = _command("bud", "--isolation", "chroot", "--network", "host", "--format", "docker")
    command += ["--layers", "--build-arg", f"BASE={base}", *secret, *torch, "--target", target]
    command += ["--file", "deploy/image/Containerfile", "--tag", image, "."]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:
        raise RuntimeError(f"expected `buildah bud` to end with 0, got {status}")


def _home() -> Path:
    fallback = Path.home() / ".cache" / "headrace" / "image"
    return Path(os.environ.get("HEADRACE_IMAGE_HOME", fallback))


def _command(*arguments: str) -> list[str]:
    folders = ["--root", str(_home() / "storage"), "--runroot", str(_home() / "run")]
    return ["buildah", *folders, *arguments]


def _exists(image: str) -> bool:
    if not _home().exists():
        return False
    command = _command("inspect", "--type", "image", image)
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def bootstrapped() -> str:
    """Return the name of a Debian with Python, which is installed unless it exists."""
    if _exists(_BASE):
        return _BASE
    without = [f"--dpkgopt=path-exclude={each}" for each in _UNREAD]
    with tempfile.TemporaryDirectory() as directory:
        archive = str(Path(directory) / "base.tar")
        packages = "--include=usr-is-merged,python3-venv,ca-certificates"
        options = ["--variant=minbase", _MERGED, packages, *without]
        subprocess.run(["mmdebstrap", *options, "bookworm", archive], check=True)
        container = buildah("from", "scratch")
        buildah("add", container, archive, "/")
        buildah("commit", "--rm", container, _BASE)
    return _BASE


def main() -> int:
    """Build the image, and with `deep` also the one with torch; return the exit status."""
    targets = {"plain": PLAIN} | ({"deep": DEEP} if "deep" in sys.argv[1:] else {})
    for target, image in targets.items():
        try:
            build(image, target)
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{image}: {size_mb(image):.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
