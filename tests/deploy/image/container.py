"""Starts the image under runc as a strict cluster does.

The root file system is read-only, the user has a number and no name or home, and no capability is
left. `/tmp` and `/dev/shm` are in memory. Containers share the network of the host, so that they
reach the Kafka and the Valkey of the tests on loopback addresses.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.command import Running
from tests.deploy.image.build import buildah, inspected

SOME_UID = 1_000_680_000
"""A user such as OpenShift draws for a namespace; no image has its name."""
_CONFIG = "/etc/headrace"
_TMPFS = ["nosuid", "nodev", "mode=1777"]
_SYSTEM: tuple[tuple[str, str, str, list[str]], ...] = (
    ("/proc", "proc", "proc", []),
    ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ("/dev/shm", "tmpfs", "shm", [*_TMPFS, "size=256m"]),
    ("/tmp", "tmpfs", "tmpfs", [*_TMPFS, "size=256m"]),
)


class UnpackedImage:
    """A mounted image, from which any number of containers start."""

    def __init__(self, root: Path, settings: dict[str, Any], state: Path) -> None:
        self.root = root
        self.settings = settings
        """The configuration of the image: `Env`, `Entrypoint`, `Labels`, `User`."""
        self._state = state
        self._numbers = itertools.count()

    @contextmanager
    def running(self, *arguments: str, config: Path, **variables: str) -> Iterator[Running]:
        """Start a container; end it with the block. `config` is mounted at `/etc/headrace`."""
        name = f"headrace-{os.getpid()}-{next(self._numbers)}"
        bundle = self._state / name
        bundle.mkdir(parents=True)
        specification = self._specification(arguments, config, variables)
        (bundle / "config.json").write_text(json.dumps(specification))
        runc = ["runc", "--root", str(self._state / "runc")]
        process = subprocess.Popen(
            [*runc, "run", "--bundle", str(bundle), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Running(process)
        finally:
            subprocess.run([*runc, "delete", "--force", name], check=False, capture_output=True)
            process.wait()

    def output(self, *arguments: str, config: Path, **variables: str) -> str:
        """Run a container to its end; return its output. Fails unless its status is 0."""
        with self.running(*arguments, config=config, **variables) as container:
            status = container.end()
            assert status == 0, container.output
            return container.output

    def _specification(
        self, arguments: tuple[str, ...], config: Path, variables: dict[str, str]
    ) -> dict[str, Any]:
        mounts: list[dict[str, Any]] = [
            {"destination": place, "type": kind, "source": source, "options": options}
            for place, kind, source, options in _SYSTEM
        ]
        binding = {"type": "bind", "options": ["rbind", "ro"]}
        mounts.append({"destination": _CONFIG, "source": str(config), **binding})
        environment = [f"{name}={value}" for name, value in variables.items()]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": SOME_UID, "gid": 0},
                "args": [*self.settings["Entrypoint"], *arguments],
                "env": [*self.settings["Env"], "HOME=/", *environment],
                "cwd": self.settings["WorkingDir"],
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "root": {"path": str(self.root), "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount")]},
        }


@contextmanager
def unpacked(image: str, state: Path) -> Iterator[UnpackedImage]:
    """Mount the image; runc keeps its state in the folder `state`."""
    container = buildah("from", "--pull-never", image)
    try:
        root = Path(buildah("mount", container))
        yield UnpackedImage(root, inspected(image)["OCIv1"]["config"], state)
    finally:
        buildah("umount", container)
        buildah("rm", container)
