"""Runs a Kubernetes control plane on free ports of this machine, with simulated nodes.

The API server, the controllers and the scheduler are the real ones, so validation, defaults,
quotas, priorities and preemption are real, too. The nodes of `add_nodes` are KWOK's; `node` adds
a real one.
"""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until

if TYPE_CHECKING:
    from tests.cluster.build import Programs

_SIMULATED_PODS = Path(__file__).with_name("simulated_pods.yaml")
_READY_S = 120.0
_KUBECTL_S = 900.0
"""Longer than any `--timeout` of a wait."""


class Refused(Exception):
    """kubectl ended with an error; the message is what it printed."""


class ControlPlane:
    """A control plane of one process each. Use as a context manager."""

    def __init__(self, programs: Programs, directory: Path) -> None:
        self._programs, self._directory = programs, directory
        self._running: list[ChildProcess] = []
        self._token = secrets.token_hex(16)
        self._port, self._etcd, self._peers = free_port(), free_port(), free_port()
        self.kubeconfig = directory / "kubeconfig"
        """A file with the address of the API server, and an administrator's token."""

    def __enter__(self) -> Self:
        """Start every part and wait until the API server is ready."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop every part, the last started first."""
        for each in reversed(self._running):
            each.stop()
        self._running.clear()

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Run kubectl and return its output; `given` is its standard input. Raises Refused."""
        command = [str(self._programs.control_plane), "kubectl", *arguments]
        done = subprocess.run(
            [*command, f"--kubeconfig={self.kubeconfig}"],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=_KUBECTL_S,
        )
        if done.returncode:
            raise Refused(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def apply(self, objects: Sequence[dict[str, Any]], *, dry_run: bool = False) -> str:
        """Send objects to the API server, which refuses unknown keys. Raises Refused."""
        options = ["--validate=strict", *(["--dry-run=server"] if dry_run else [])]
        return self.kubectl("apply", *options, "-f", "-", given=yaml.safe_dump_all(objects))

    def get(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects that `kubectl get` lists."""
        found = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        items: list[dict[str, Any]] = found.get("items", [found])
        return items

    def add_nodes(self, count: int, cpu: int, memory: str) -> None:
        """Add simulated nodes of so many cores and so much memory each, and wait for them."""
        room = {"cpu": str(cpu), "memory": memory, "pods": "110"}
        nodes = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": f"node-{number}",
                    "labels": {
                        "kubernetes.io/hostname": f"node-{number}",
                        "topology.kubernetes.io/zone": f"zone-{number % 3}",
                    },
                    "annotations": {"kwok.x-k8s.io/node": "fake"},
                },
                "status": {"allocatable": room, "capacity": room},
            }
            for number in range(count)
        ]
        self.apply(nodes)
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={_READY_S}s")

    def _start(self) -> None:
        directory, parts = self._directory, self._programs.control_plane
        key = directory / "service-account.key"
        command = ["openssl", "genrsa", "-out", str(key), "2048"]
        subprocess.run(command, check=True, capture_output=True)
        (directory / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        self.kubeconfig.write_text(yaml.safe_dump(self._client_settings()))
        etcd, peers = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peers}"
        self._run(
            *(parts, "etcd", f"--data-dir={directory / 'etcd'}"),
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            *(f"--initial-cluster=default={peers}", "--unsafe-no-fsync", "--log-level=warn"),
        )
        server = self._run(
            *(parts, "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1"),
            *("--advertise-address=127.0.0.1", f"--secure-port={self._port}"),
            *(
                f"--cert-dir={directory / 'certificates'}",
                "--service-cluster-ip-range=10.96.0.0/16",
            ),
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--authorization-mode=RBAC", f"--token-auth-file={directory / 'tokens.csv'}"),
            *("--endpoint-reconciler-type=none", "--enable-priority-and-fairness=false"),
        )
        if not wait_until(self._ready, _READY_S, lambda: server.alive):
            raise TimeoutError(f"expected a ready API server, got:\n{server.log_tail()}")
        client = f"--kubeconfig={self.kubeconfig}"
        self._run(
            *(parts, "kube-controller-manager", client, "--leader-elect=false"),
            *("--secure-port=0", f"--service-account-private-key-file={key}"),
            # its nodes have no addresses in a cloud
            "--controllers=*,-cloud-node-lifecycle-controller",
        )
        self._run(parts, "kube-scheduler", client, "--leader-elect=false", "--secure-port=0")
        self._run(
            *(self._programs.kwok, client),
            *(f"--config={each}" for each in (self._programs.stages, _SIMULATED_PODS)),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            *("--node-lease-duration-seconds=40", "--cidr=10.0.0.0/16", "--node-ip=127.0.0.1"),
        )

    def _run(self, *command: str | Path) -> ChildProcess:
        words = [str(each) for each in command]
        name = words[1] if words[0] == str(self._programs.control_plane) else "kwok"
        self._running.append(ChildProcess(words, self._directory / f"{name}.log", grace_s=5.0))
        return self._running[-1]

    def _client_settings(self) -> dict[str, Any]:
        cluster = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }

    def _ready(self) -> bool:
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}/readyz",
            headers={"Authorization": f"Bearer {self._token}"},
        )
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(request, timeout=5.0, context=trusting) as answer:
                return bool(answer.read() == b"ok")
        except (urllib.error.URLError, OSError):
            return False
