"""Runs a real node of a control plane on this machine: kubelet, containerd, runc and a bridge.

Pods have addresses of the bridge and reach the servers that listen on its own address,
`BRIDGE_ADDRESS`. There is no DNS, no kube-proxy and no way to the internet, so everything is named
by its address, and the node's images come from `load`. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Self

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from tests.cluster.control_plane import ControlPlane
from tests.deploy.image.build import PLAIN, buildah, missing

if TYPE_CHECKING:
    from tests.cluster.build import Programs

BRIDGE_ADDRESS = "10.231.0.1"
NAME = "real-node"
_BRIDGE, _SUBNET = "headrace0", "10.231.0.0/24"
_PLUGINS = Path("/usr/lib/cni")
"""The folder of Debian's package containernetworking-plugins."""
_PAUSE = "localhost/headrace-pause:1"
_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "headrace",
    "plugins": [
        {
            "type": "bridge",
            "bridge": _BRIDGE,
            "isGateway": True,
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": _SUBNET}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
_KERNEL = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward"),
)
"""Settings of the whole machine that the kubelet and the bridge's plugin change."""
_READY_S = 300.0
_HERE, _PROC = Path(__file__).parent, Path("/proc/sys")


def node_lacks(programs: Programs) -> str:
    """Return why no node can run here, or "" if one can."""
    if not all(each.exists() for each in programs):
        return "the programs of a node are not built: `make cluster` builds them"
    if not (_PLUGINS / "bridge").exists():
        return f"needs the network plugins of containernetworking-plugins in {_PLUGINS}"
    if shutil.which("ip") is None:
        return "needs ip, of the package iproute2"
    return missing(PLAIN)


class Node:
    """One node, ready for pods. Use as a context manager, inside that of the control plane."""

    def __init__(self, control_plane: ControlPlane, programs: Programs, directory: Path) -> None:
        self._control_plane, self._programs, self._directory = control_plane, programs, directory
        # the path of a socket has at most 107 characters
        self._sockets = tempfile.TemporaryDirectory(prefix="headrace-node-")
        self._socket = Path(self._sockets.name) / "containerd.sock"
        self._running: list[ChildProcess] = []
        self._kernel = {name: (_PROC / name).read_text() for name in _KERNEL}

    def __enter__(self) -> Self:
        """Start everything, and wait until the node is ready."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def load(self, image: str, *names: str) -> None:
        """Copy an image of `tests.deploy.image.build` to the node, also under other names."""
        archive = self._directory / "image.tar"
        buildah("push", image, f"docker-archive:{archive}:{image}")
        self._ctr("images", "import", str(archive))
        archive.unlink()
        for name in names:
            self._ctr("images", "tag", image, name)

    def log(self, component: str) -> str:
        """Return the end of the logs of all containers of this component, for a message."""
        found = sorted((self._directory / "logs").glob(f"*-{component}-*/*/*.log"))
        return "\n".join(f"{each}:\n{each.read_text()[-2000:]}" for each in found)

    def stop(self) -> None:
        """Stop the pods, then kubelet and containerd, and leave the machine as it was."""
        if len(self._running) > 1:
            with suppress(Exception):  # the control plane may be what failed
                self._remove_pods()
        while self._running:  # the kubelet before containerd
            if len(self._running) == 1:
                self._kill_containers()
            self._running.pop().stop()
        for place in _mounts_below(self._directory):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=False, capture_output=True)
        for name, value in self._kernel.items():
            with suppress(OSError):
                (_PROC / name).write_text(value)
        self._sockets.cleanup()

    def _start(self) -> None:
        directory = self._directory
        _add_bridge()
        network = json.loads(json.dumps(_NETWORK))
        network["plugins"][0]["ipam"]["dataDir"] = str(directory / "addresses")
        (directory / "networks").mkdir()
        (directory / "networks/bridge.conflist").write_text(json.dumps(network))
        path = f"{self._programs.containerd.parent}:{os.environ['PATH']}"  # it looks for its shim
        settings = self._settings("containerd.toml")
        containerd = self._run(self._programs.containerd, "--config", settings, PATH=path)
        if not wait_until(self._socket.exists, _READY_S, lambda: containerd.alive):
            raise TimeoutError(f"expected containerd to listen, got:\n{containerd.log_tail()}")
        self._load_pause()
        kubelet = self._run(
            *(self._programs.kubelet, f"--config={self._settings('kubelet.yaml')}"),
            f"--kubeconfig={self._control_plane.kubeconfig}",
            *(f"--hostname-override={NAME}", f"--node-ip={BRIDGE_ADDRESS}"),
            *(f"--root-dir={directory / 'kubelet'}", f"--cert-dir={directory / 'certificates'}"),
        )
        if not wait_until(self._ready, _READY_S, lambda: kubelet.alive):
            raise TimeoutError(f"expected a ready node, got:\n{kubelet.log_tail()}")

    def _settings(self, name: str) -> Path:
        """Write a file of settings for this node; return its path."""
        values = {
            "DIRECTORY": self._directory,
            "SOCKET": self._socket,
            "PLUGINS": _PLUGINS,
            "RUNC": shutil.which("runc"),
            "PAUSE": _PAUSE,
            "PORT": free_port(),
        }
        path = self._directory / name
        path.write_text(Template((_HERE / name).read_text()).safe_substitute(values))
        return path

    def _run(self, *command: str | Path, **variables: str) -> ChildProcess:
        words = [str(each) for each in command]
        log = self._directory / f"{Path(words[0]).name}.log"
        self._running.append(ChildProcess(words, log, env={**os.environ, **variables}))
        return self._running[-1]

    def _load_pause(self) -> None:
        """Make and load the image of the container that keeps a pod's network."""
        container = buildah("from", "scratch")
        buildah("add", container, str(self._programs.pause), "/pause")
        buildah("config", "--entrypoint", '["/pause"]', container)
        buildah("commit", "--rm", "--format", "docker", container, _PAUSE)
        self.load(_PAUSE)
        buildah("rmi", _PAUSE)

    def _ctr(self, *words: str) -> str:
        program = self._programs.containerd.with_name("ctr")
        command = [str(program), "--address", str(self._socket), "--namespace", "k8s.io", *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"expected `ctr {words[0]}` to succeed, got:\n{done.stderr[-2000:]}")
        return done.stdout

    def _ready(self) -> bool:
        for node in self._control_plane.get("nodes"):
            conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
            if node["metadata"]["name"] == NAME and conditions.get("Ready") == "True":
                return not node["spec"].get("taints")
        return False

    def _remove_pods(self) -> None:
        """Have the kubelet end every pod, and with them their networks and mounts."""
        pods = self._control_plane.get("pods", "--all-namespaces")
        for namespace in {each["metadata"]["namespace"] for each in pods}:
            self._control_plane.kubectl(
                *("delete", "deployments,statefulsets,jobs,pods", "--all"),
                *(f"--namespace={namespace}", "--grace-period=1", "--timeout=60s"),
            )

    def _kill_containers(self) -> None:
        """Kill the containers that are left: they would outlive containerd."""
        with suppress(RuntimeError):
            for each in self._ctr("tasks", "list", "--quiet").split():
                self._ctr("tasks", "delete", "--force", each)


def _add_bridge() -> None:
    """Make the bridge before the first pod does, so that servers can listen on its address."""
    prefix = _SUBNET.partition("/")[2]
    for words in (
        ("link", "add", _BRIDGE, "type", "bridge"),
        ("address", "add", f"{BRIDGE_ADDRESS}/{prefix}", "dev", _BRIDGE),
        ("link", "set", _BRIDGE, "up"),
    ):
        subprocess.run(["ip", *words], check=True, capture_output=True)


def _mounts_below(directory: Path) -> list[str]:
    """Return the places below a folder where something is mounted, the deepest first."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((each for each in places if each.startswith(f"{directory}/")), reverse=True)
