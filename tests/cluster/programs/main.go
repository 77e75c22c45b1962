// The parts of a Kubernetes control plane and kubectl in one program: the first argument names the
// part, the others are the part's own.
//
// One program instead of five needs a fifth of the disk and of the time to link. The parts come
// from the published modules, unchanged.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubectl "k8s.io/kubectl/pkg/cmd"
)

// run returns the function that runs a command and returns its exit status. The command is made
// late: the flags of the parts would collide.
func run(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

var parts = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(manager.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
}

func main() {
	names := slices.Sorted(maps.Keys(parts))
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintf(os.Stderr, "expected one of %s, got %q\n", strings.Join(names, ", "), os.Args[1:])
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(parts[os.Args[0]]())
}
