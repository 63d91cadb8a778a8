// Program coredns is CoreDNS with the plugins that the lab's cluster needs: its other plugins
// bring the clients of every cloud, which take longer to compile than everything else in here.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	coremain.Run()
}
