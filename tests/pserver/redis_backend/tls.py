"""A Redis or Valkey server that accepts TLS only, with certificates made for the test."""

import functools
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import redis

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until

HOST = "127.0.0.1"
_KEY = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates(NamedTuple):
    """Files: an authority, a server's certificate from it, and a client's."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    @property
    def parameters(self) -> str:
        """The parameters of a URL."""
        ours = f"ssl_certfile={self.client}&ssl_keyfile={self.client_key}"
        return f"ssl_ca_certs={self.authority}&{ours}"


@functools.cache
def missing_for_tls() -> str | None:
    """Return the missing requirement of these tests, None if there is no such."""
    if shutil.which("openssl") is None:
        return "needs the openssl command, to make certificates"
    if tls_server() is None:
        return "needs a redis-server or valkey-server built with TLS, such as Debian's redis-server"
    return None


@functools.cache
def tls_server() -> str | None:
    """Return a server on the PATH that supports TLS and Functions."""
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        # a server without TLS refuses the setting and ends; one with it ends for want of a file
        if path is not None:
            asked = [path, "--port", "0", "--tls-port", str(free_port()), "--tls-cert-file", "none"]
            said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
            if "tls-port" not in said.stdout + said.stderr:
                return path
    return None


def make_certificates(directory: Path) -> Certificates:
    """Create an authority and the certificates it signs. `directory` exists."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", *_KEY, "-days", "2", "-subj", "/CN=test authority",
            "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    (directory / "names").write_text(f"subjectAltName=IP:{HOST}")
    for name in ("server", "client"):
        openssl("req", "-newkey", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                "-out", f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "2", "-extfile", "names",
                "-out", f"{name}.crt")  # fmt: skip
    names = ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")
    return Certificates(*(directory / name for name in names))


class TlsNode:
    """A server that accepts TLS only, from clients with a certificate."""

    def __init__(self, directory: Path, certificates: Certificates, *words: str) -> None:
        binary = tls_server()
        assert binary is not None
        self.port, self.certificates = free_port(), certificates
        directory.mkdir()
        command = [
            *(binary, "--port", "0", "--tls-port", str(self.port), "--bind", HOST),
            *("--tls-cert-file", str(certificates.server)),
            *("--tls-key-file", str(certificates.server_key)),
            *("--tls-ca-cert-file", str(certificates.authority)),
            *("--tls-replication", "yes", "--save", "", "--dir", str(directory)),
            *words,
        ]
        self._process = ChildProcess(command, directory / "server.log")

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"rediss://{self.address}?{self.certificates.parameters}"

    def client(self) -> redis.Redis:
        """An administrator's client, to be closed by the caller."""
        return redis.Redis.from_url(self.url)

    def wait_ready(self) -> None:
        def answers() -> bool:
            try:
                with self.client() as client:
                    return bool(client.ping())
            except redis.RedisError:
                return False

        assert wait_until(answers, 30, lambda: self._process.alive), self._process.log_tail()

    def stop(self) -> None:
        self._process.stop()
