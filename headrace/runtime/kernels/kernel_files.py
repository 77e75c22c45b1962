"""The files in which the machine code of kernels is stored: one for each kernel and signature.

A file begins with the digest of its sources (`kernel_sources`). A reader that expects another one
takes the file as missing, and its writer replaces it. The digest and the machine code are in one
file, and a finished file is moved into place at once. So a process that is killed while it writes
changes nothing, and processes that start at once replace each other's files by equal ones.

numba keeps an index beside the files instead. It writes the index first, so a killed process leaves
an index of new code that names a file of old machine code. Two processes that compile two
signatures at once can take the same name for both files.
"""

import hashlib
import uuid
from pathlib import Path

_FORMAT = b"headrace kernel 1\n"
_HASH_BYTES = hashlib.sha256().digest_size


def read(path: Path, digest: bytes) -> bytes | None:
    """Return what was written under this digest; None if the file is missing, other or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    begin = len(_FORMAT) + len(digest)
    end = begin + _HASH_BYTES
    if content[:begin] != _FORMAT + digest:
        return None
    machine_code = content[end:]
    # the checksum finds a file that a failing disk or a lost host left incomplete
    return machine_code if content[begin:end] == _checksum(machine_code) else None


def write(path: Path, digest: bytes, machine_code: bytes) -> None:
    """Replace the file. Raises OSError if the disk refuses it."""
    unfinished = path.with_name(f"{path.name}.tmp.{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(_FORMAT + digest + _checksum(machine_code) + machine_code)
        unfinished.replace(path)
    finally:
        # also what killed processes left; a process at work then keeps its code in memory only
        for left in path.parent.glob(f"{path.name}.tmp.*"):
            left.unlink(missing_ok=True)


def _checksum(machine_code: bytes) -> bytes:
    return hashlib.sha256(machine_code).digest()
