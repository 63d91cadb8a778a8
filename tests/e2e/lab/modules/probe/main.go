// Program probe is what the lab's pods run: one static file that pauses, speaks, looks names up
// and serves. It is also the sandbox ("pause") container of every pod, and by the name nvidia-smi it
// stands for that program.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"
)

const usage = "probe pause | stay | say TEXT… | env [PREFIX] | gpus | lookup NAME | get URL | serve ADDRESS"

func main() {
	name, start := filepath.Base(os.Args[0]), run
	if name == "nvidia-smi" {
		start = listGpus
	}
	if err := start(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		args = []string{"pause"}
	}
	verb, rest := args[0], args[1:]
	switch {
	case verb == "pause":
		pause()
		return nil
	case verb == "stay":
		stay()
		return nil
	case verb == "say":
		fmt.Println(strings.Join(rest, " "))
		pause()
		return nil
	case verb == "env":
		printEnvironment(strings.Join(rest, ""))
		pause()
		return nil
	case verb == "gpus":
		if err := printGpus(); err != nil {
			return err
		}
		pause()
		return nil
	case verb == "lookup" && len(rest) == 1:
		return lookup(rest[0])
	case verb == "get" && len(rest) == 1:
		return get(rest[0])
	case verb == "serve" && len(rest) == 1:
		return serve(rest[0])
	}
	return fmt.Errorf("arguments are %q, expected %s", args, usage)
}

// pause waits for a signal to end and reaps orphans, as the first process of a pod must.
func pause() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// stay ends for nobody who asks: only SIGKILL ends it.
func stay() {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("staying")
	for {
		time.Sleep(time.Hour)
	}
}

func printEnvironment(prefix string) {
	lines := os.Environ()
	sort.Strings(lines)
	for _, line := range lines {
		if strings.HasPrefix(line, prefix) {
			fmt.Println(line)
		}
	}
}

// printGpus says in one line what a GPU program would go by: the device files that are there, and
// the variables that choose among them.
func printGpus() error {
	files, err := filepath.Glob("/dev/nvidia*")
	if err != nil {
		return err
	}
	cuda, isSet := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	said, err := json.Marshal(map[string]any{
		"files": append([]string{}, files...), // sorted; never null
		"cuda":  cuda, "cudaIsSet": isSet, "nvidia": os.Getenv("NVIDIA_VISIBLE_DEVICES"),
	})
	fmt.Println(string(said))
	return err
}

// listGpus says what `nvidia-smi -L` would say of the GPUs that the device plugin gave.
func listGpus(args []string) error {
	if len(args) != 1 || args[0] != "-L" {
		return fmt.Errorf("arguments are %q, expected -L", args)
	}
	for number, uuid := range strings.Split(os.Getenv("NVIDIA_VISIBLE_DEVICES"), ",") {
		fmt.Printf("GPU %d: NVIDIA H100 80GB HBM3 (UUID: %s)\n", number, uuid)
	}
	return nil
}

func lookup(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	sort.Strings(addresses)
	fmt.Println(strings.Join(addresses, " "))
	return nil
}

func get(url string) error {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	fmt.Printf("%d %s\n", answer.StatusCode, body)
	return err
}

func serve(address string) error {
	name, _ := os.Hostname()
	server := http.Server{
		Addr:              address,
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, name)
		}),
	}
	return server.ListenAndServe()
}
