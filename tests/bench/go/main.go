// Peers and load for gpuwarden's benchmarks: what an experienced Go team would write with the
// standard library alone, and a load generator that speaks the agents' protocol.
//
//	extender  an extender on net/http and encoding/json
//	admission the webhooks for pods on net/http and encoding/json
//	ingest    the attestation stream on net/http's HTTP/2, verified as far as ingest.go says
//	reviews   an API server that asks webhooks about one pod again and again
//	load      thousands of agents with made-up hardware against either ingest
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	commands := map[string]func([]string) error{
		"admission": admission,
		"extender":  extender,
		"ingest":    ingest,
		"load":      load,
		"reviews":   reviews,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: bench admission|extender|ingest|load|reviews [flags]")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// say writes one event as a line of JSON on standard output.
func say(event map[string]any) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
