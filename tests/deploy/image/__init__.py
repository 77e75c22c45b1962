"""Tests of the container image under runc.

`make image` builds the image with buildah, into a folder outside the repository (`build`). The
tests start it without a daemon (`container`): on a read-only root, as a user without a name, and
with the network of the host, where Kafka and Valkey run. Without buildah, runc or a built image,
they are skipped. `cold_start` measures the processor time until each part is ready.
"""
