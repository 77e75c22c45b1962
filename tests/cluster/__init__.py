"""Tests against a real Kubernetes: a control plane with simulated nodes, and a real node.

`make cluster` builds the programs once, into a folder outside the repository (`build`), and runs
these tests. They start etcd, the API server, the controllers and the scheduler of Kubernetes on
free ports of this machine (`control_plane`). Without a build, the tests are skipped.

Most tests have simulated nodes: KWOK plays the kubelets, which take pods and report them as ready,
and no container runs. One long test has a real node (`node`): kubelet, containerd and runc run the
image of `make image`. It installs the chart (`release`), sends events and asks for predictions
(`site_traffic`), kills and replaces pods and servers, and counts (`kill_and_roll`). It needs root,
runc, buildah, and the packages containernetworking-plugins and iproute2.
"""
