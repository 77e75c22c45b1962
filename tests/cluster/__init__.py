"""Tests against a real Kubernetes control plane with simulated nodes.

`make cluster` builds the programs once, into a folder outside the repository (`build`), and runs
these tests. They start etcd, the API server, the controllers and the scheduler of Kubernetes on
free ports of this machine (`control_plane`). KWOK plays the kubelets: its nodes take pods and
report them as ready, and no container runs. Without a build, the tests are skipped.
"""
